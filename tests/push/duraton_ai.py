"""Model calls, their limits, datasets and evals with the published `duraton` SDK.

A part of `duraton_program`: the workflows, and cases that are given its driver.
"""

import asyncio
from typing import Any

from duraton import CapConfig, define_workflow  # type: ignore[import-not-found]
from duraton.ai.embed import EmbedOptions  # type: ignore[import-not-found]
from duraton.ai.generate import GenerateOptions  # type: ignore[import-not-found]
from duraton.ai.loop import (  # type: ignore[import-not-found]
    LoopHandlerTool,
    LoopOptions,
    LoopToolCall,
    LoopTurn,
)
from duraton.ai.provider import GenerateResult, TokenUsage  # type: ignore[import-not-found]
from duraton.client.datasets import (  # type: ignore[import-not-found]
    DatasetItemInput,
    RunEvalInput,
)
from duraton.client.errors import DuratonAPIError  # type: ignore[import-not-found]
from duraton.client.options import (  # type: ignore[import-not-found]
    AISpendOptions,
    FlowStateOptions,
    ListRunsOptions,
    WaitRunOptions,
)
from duraton.context import InferOptions, ScoreInput  # type: ignore[import-not-found]


def answer(tokens: int) -> dict[str, Any]:
    """What a client of a provider returns."""
    used = {"prompt_tokens": tokens, "completion_tokens": 5}
    return {"object": "chat.completion", "model": "m-1", "choices": [], "usage": used}


class Provider:
    """A provider of the SDK."""

    name = "anthropic"

    async def generate(self, asked: Any) -> Any:
        usage = TokenUsage(input_tokens=3, output_tokens=4, cache_read_tokens=2)
        return GenerateResult(text="hi", model="m-2", provider="anthropic", usage=usage)


def cost_of(call: Any) -> float | None:
    return 0.5 if call.model == "m-1" else None


async def wraps(ctx: Any) -> Any:
    await ctx.step.ai.wrap("ask", lambda: answer(100))
    told = await ctx.step.ai.generate("tell", GenerateOptions(model="m-2", prompt="?"))
    vectors = await ctx.step.ai.embed(
        "embed",
        EmbedOptions(
            model="e",
            inputs=["a", "b", "c"],
            batch_size=2,
            embed=lambda some: [[1.0] for _ in some],
        ),
    )

    def turn(loop: Any, number: int) -> Any:
        if number == 0:
            return LoopTurn(
                tool_calls=[LoopToolCall(id="c1", name="add", input=2)], model="m-3", tokens_in=1
            )
        return LoopTurn(final=loop.history[0].tool_results[0].output, model="m-3", tokens_out=2)

    looped = await ctx.step.ai.loop(
        "loop",
        LoopOptions(
            prompt="?",
            turn=turn,
            max_iterations=3,
            tools={"add": LoopHandlerTool(handler=lambda n: n + 1)},
        ),
    )
    return [told.text, len(vectors.vectors), looped.final]


async def infers(ctx: Any) -> Any:
    asked = [{"role": "user", "content": "why?"}]
    told = await ctx.step.ai.infer("ask", InferOptions(messages=asked, model="m", max_tokens=5))
    return [told.text, told.model]


async def capped(ctx: Any) -> Any:
    for number in range(3):
        await ctx.step.ai.wrap(f"ask {number}", lambda: answer(100))
    return "never"


async def tight(ctx: Any) -> Any:
    await ctx.step.ai.wrap("ask", lambda: answer(95))
    return await ctx.step.run("last", lambda: "done")


async def answers(ctx: Any) -> Any:
    got = ctx.event.data["n"] * 2
    good = await ctx.asserts.equals(got)
    await ctx.score(ScoreInput(name="size", value=got))
    return [good, ctx.eval["setId"], ctx.eval["itemId"]]


WORKFLOWS = [
    define_workflow("wraps", wraps),
    define_workflow("infers", infers),
    define_workflow("capped", capped, cap=CapConfig(max_tokens=200)),
    define_workflow("costly", capped, cap=CapConfig(max_cost=0.5)),
    define_workflow("tight", tight, extra={"budget": {"windowMs": 600_000, "maxTokens": 100}}),
    define_workflow("paced", tight, extra={"tokenThrottle": {"tokens": 100, "perMs": 500}}),
    define_workflow(
        "answers", answers, extra={"rateLimit": {"limit": 1, "perMs": 600_000}, "singleton": {}}
    ),
]


async def case_model_calls(driver: Any) -> None:
    run_id = await driver.start("wraps")
    run = await driver.ends(run_id)
    assert run.result == ["hi", 3, 3], run
    assert (run.ai_tokens, run.ai_cost) == (115, 0.5), run
    steps = {step.name: step for step in await driver.client.runs.steps(run_id)}
    assert steps["ask"].ai["model"] == "m-1", steps
    assert {"embed:batch:0", "embed:batch:1", "loop:iter:1"} <= set(steps), steps
    spend = await driver.client.ai.spend(AISpendOptions(workflow="wraps", bucket=3_600))
    assert (spend.tokens, spend.calls, spend.cost) == (115, 6, 0.5), spend
    assert (spend.cache_hits, spend.cache_eligible, spend.bucket_seconds) == (1, 1, 3_600), spend
    assert [one.model for one in spend.by_model] == ["m-1", "m-2", "m-3", "e"], spend
    (of,) = spend.by_workflow
    assert (of.workflow, of.app, of.runs, of.tokens) == ("wraps", "stories", 1, 115), of
    assert sum(point.calls for point in spend.hourly) == 6, spend
    assert spend.avg_latency_ms is not None, spend


async def case_inference(driver: Any) -> None:
    run_id = await driver.start("infers")
    run = await driver.ends(run_id)
    assert run.result == ["because", "m-9"], run
    assert run.ai_tokens == 10, run
    (step,) = await driver.client.runs.steps(run_id)
    assert (step.status, step.ai["kind"]) == ("succeeded", "infer"), step


async def case_caps(driver: Any) -> None:
    for name, calls in (("capped", 2), ("costly", 1)):
        run_id = await driver.start(name)
        run = await driver.ends(run_id, "failed")
        assert "spend cap reached" in run.error.message, run
        assert run.ai_tokens == calls * 105, run


async def case_budgets(driver: Any) -> None:
    first = await driver.start("tight")
    paused = WaitRunOptions(until=("paused",), interval_s=0.02, timeout_s=30)
    run = await driver.client.runs.wait(first, paused)
    assert (run.paused_by.reason, run.ai_tokens) == ("budget", 100), run
    sent = await driver.emit("tight")
    assert not any(sent[gate] for gate in ("skipped", "dropped", "deduped")), sent
    run = await driver.client.runs.wait(sent["runId"], paused)
    assert run.paused_by.reason == "budget", run
    await driver.client.runs.resume(first)
    assert (await driver.ends(first)).result == "done"
    await driver.client.runs.cancel(sent["runId"])
    (shown,) = [one for one in await driver.client.workflows.list() if one.name == "tight"]
    budget = shown.flow_control.budget
    assert (budget.window_ms, budget.max_tokens) == (600_000, 100), shown


async def case_token_throttles(driver: Any) -> None:
    started = asyncio.get_running_loop().time()
    runs = [await driver.start("paced")]
    await driver.ends(runs[0])
    runs += [await driver.start("paced") for _ in range(2)]
    for run_id in runs:
        assert (await driver.ends(run_id)).result == "done"
    # A hundred tokens in half a second, and each uses a hundred.
    assert asyncio.get_running_loop().time() - started >= 0.9
    assert await driver.client.flow_state(FlowStateOptions(workflow="paced"))


async def case_evals(driver: Any) -> None:
    datasets = driver.client.datasets
    made = await datasets.create("numbers", "twice as much")
    assert (made.name, made.item_count, made.description) == ("numbers", 0, "twice as much")
    for number in (1, 2, 3):
        item = DatasetItemInput({"n": number}, expected=4, metadata={"by": "Ann"})
        added = await datasets.add_item(made.id, item)
        assert (added.dataset_id, added.expected, added.archived) == (made.id, 4, False), added
    assert [one.input["n"] for one in await datasets.items(made.id)] == [3, 2, 1]
    assert len(await datasets.items(made.id, archived=True)) == 3
    assert (await datasets.get(made.id)).item_count == 3
    assert made.id in [one.id for one in await datasets.list()]
    told = await datasets.run_eval(made.id, RunEvalInput("answers", app="stories", label="v1"))
    assert (told.eval_set.run_count, told.eval_set.label) == (3, "v1"), told
    results = [(await driver.ends(run_id)).result for run_id in told.run_ids]
    assert [good for good, _, _ in results] == [False, True, False], results
    assert {of for _, of, _ in results} == {told.eval_set.id}, results
    judged = await datasets.eval_set(told.eval_set.id)
    averages = {score.name: (round(score.avg, 3), score.count) for score in judged.scores}
    assert averages == {"match": (0.333, 3), "size": (4.0, 3)}, judged
    assert await datasets.eval_runs(made.id) == [judged]
    run = await driver.client.runs.get(told.run_ids[0])
    assert (run.trigger_kind, run.eval.set_id) == ("eval", told.eval_set.id), run
    assert run.eval.item_id == results[0][2], run
    listed = await driver.client.runs.list(ListRunsOptions(run_type="eval"))
    assert {one.id for one in listed.runs} == set(told.run_ids), listed
    refused: Any = None
    try:
        await datasets.run_eval(made.id, RunEvalInput("nobody"))
    except DuratonAPIError as error:
        refused = error
    assert refused is not None
    assert refused.status == 404, refused


CASES = {
    name.removeprefix("case_"): case
    for name, case in list(globals().items())
    if name.startswith("case_")
}
