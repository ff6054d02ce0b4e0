"""The published SDK and ours give an engine the same answers to the same invokes."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from perdure.sdk import App, Connection, Context, NonRetriableError, RetryAfterError
from tests.sdk_runner.engine import RunnerSocket, fake_engine
from tests.sdk_runner.played import PENDING, body_of, done, failed
from tests.support.sdk import ROOT, python_of

LIMIT_SECONDS = 60
app = App("shop")


@app.workflow("sequence")
async def sequence(ctx: Context) -> object:
    first = await ctx.step.run("first", lambda: {"n": 1, "é": [None, True, 1.5]})
    await ctx.step.sleep("nap", "1.5s")
    [second] = await asyncio.gather(ctx.step.run("second", lambda: None))
    return [first, second]


@app.workflow("parallel")
async def parallel(ctx: Context) -> object:
    async def slow() -> str:
        await asyncio.sleep(0.001)
        return "slow"

    return await asyncio.gather(
        ctx.step.run("s", slow), ctx.step.run("s", lambda: "quick"), ctx.step.sleep("s", 5)
    )


@app.workflow("everything")
async def everything(ctx: Context) -> object:
    results = await asyncio.gather(
        ctx.step.sleep_until("until", datetime(2030, 1, 1, tzinfo=UTC)),
        ctx.step.wait_for_event("wait", "paid", timeout="1h"),
        ctx.step.wait_for_event("wait if", "paid", timeout=5, where="event.data.x == 1"),
        ctx.step.run_workflow("child", "kid", {"a": 1}, app="other", runner="n1"),
        ctx.step.run_workflow("child", "kid"),
        ctx.step.emit("emit", "ev", None, app="other", dedupe_id="d"),
        ctx.step.emit("emit", "ev"),
        ctx.webhook.send("hook", "https://example.com", [1]),
        ctx.step.skip("skip", "why"),
        ctx.step.skip("skip"),
        ctx.step.approval("approve", "refund", {"n": 1}, risk="high", summary="s", timeout="2h"),
        ctx.score("acc", True, comment="c"),
    )
    return list(results)


@app.workflow("failing")
async def failing(ctx: Context) -> None:
    def give_up() -> None:
        raise NonRetriableError("no")

    def later() -> None:
        raise RetryAfterError("later", "30s")

    def oops() -> None:
        raise ValueError("oops")

    await asyncio.gather(
        ctx.step.run("give up", give_up), ctx.step.run("later", later), ctx.step.run("oops", oops)
    )


@app.workflow("logging")
async def logging(ctx: Context) -> object:
    def body() -> int:
        ctx.log.warn("inside", {"k": 1})
        return 1

    ctx.log("top")
    ctx.log.debug("top again")
    return await ctx.step.run("s", body)


@app.workflow("catching")
async def catching(ctx: Context) -> object:
    try:
        result: object = await ctx.step.run_workflow("child", "kid")
    except Exception as error:
        return f"caught {error}"
    return result


@app.workflow("polling")
async def polling(ctx: Context) -> object:
    nothing: object = None
    return await ctx.step.poll("p", lambda: nothing, every="300ms", timeout="900ms")


@app.workflow("raising")
async def raising(ctx: Context) -> None:
    ctx.log("before")
    raise RuntimeError("boom")


@app.workflow("mourning")
async def mourned(ctx: Context) -> None:
    await raising.handler(ctx)


@mourned.on_failure
async def mourning(ctx: Context) -> object:
    assert ctx.error is not None
    return [ctx.error.message, ctx.run_id, ctx.attempt, ctx.app, ctx.runner, ctx.event.data]


SEQUENCE = {"first": done({"n": 1}), "nap": done(), "second": done()}
INVOKES: dict[str, dict[str, Any]] = {
    "unknown": body_of("nope"),
    "sequence, first pass": body_of("sequence"),
    "sequence, asleep": body_of("sequence", {"first": done(0)}),
    "sequence, awake": body_of("sequence", {"first": done(0), "nap": done()}),
    "sequence, last pass": body_of("sequence", SEQUENCE),
    "parallel, first pass": body_of("parallel"),
    "parallel, retried": body_of("parallel", {"s": done("slow"), "s:2": PENDING}),
    "parallel, last pass": body_of("parallel", {"s": done(1), "s:1": done(2), "s:2": done()}),
    "everything": body_of("everything"),
    "failing": body_of("failing"),
    "logging, first pass": body_of("logging"),
    "logging, last pass": body_of("logging", {"s": done(1)}),
    "a failed child, caught": body_of("catching", {"child": failed("kid failed")}),
    "polling, first pass": body_of("polling"),
    "polling, a gap": body_of("polling", {"p:probe:0": done()}),
    "polling, again": body_of("polling", {"p:probe:0": done(), "p:gap:0": done()}),
    "polling, there": body_of("polling", {"p:probe:0": done(5)}),
    "raising": body_of("raising"),
    "a failure run": body_of(
        "mourning", onFailure=True, error={"message": "why"}, attempt=2, runner="n", data=[1]
    ),
    "a failure run, nothing to handle it": body_of("raising", onFailure=True, error={}),
}


async def answers(runner: RunnerSocket) -> dict[str, Any]:
    return {name: tidy(await runner.invoke(body)) for name, body in INVOKES.items()}


def tidy(answer: tuple[int, Any]) -> Any:
    """An answer without what may differ: the clock, stacks, the order of members."""
    status, body = answer
    for line in body.get("logs", []):
        del line["tsMs"]
    for opcode in body.get("opcodes", []):
        opcode.get("error", {}).pop("stack", None)
    return status, json.loads(json.dumps(body, sort_keys=True))


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(LIMIT_SECONDS):
            await story()

    asyncio.run(main())


@pytest.fixture(scope="module")
def told() -> tuple[dict[str, Any], dict[str, Any]]:
    """What both answered to all invokes."""
    both: list[dict[str, Any]] = []

    async def story() -> None:
        async with fake_engine() as engine:
            theirs = await asyncio.create_subprocess_exec(
                *(python_of("duraton"), "-m", "tests.sdk_runner.duraton_side", engine.url), cwd=ROOT
            )
            try:
                runner = await engine.accept()
                registration = await runner.greet()
                assert (registration["sdkName"], registration["runner"]) == ("duraton", "theirs")
                both.append(await answers(runner))
            finally:
                theirs.kill()
                await theirs.wait()
            async with Connection(app, engine_url=engine.url):
                runner = await engine.accept()
                await runner.greet()
                both.append(await answers(runner))

    run(story)
    theirs, ours = both
    return theirs, ours


@pytest.mark.parametrize("invoke", INVOKES)
def test_both_sdks_answer_alike(invoke: str, told: tuple[dict[str, Any], dict[str, Any]]) -> None:
    theirs, ours = told

    assert ours[invoke] == theirs[invoke]
