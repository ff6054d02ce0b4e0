"""Model calls of the runner SDK: what they tell, what they may, and how they are rehearsed."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from perdure.sdk import (
    App,
    Budget,
    Cap,
    Context,
    RunFailedError,
    StepFailedError,
    TokenThrottle,
    ToolCall,
    Turn,
    Usage,
    workflow,
)
from perdure.sdk.ai import read_usage
from perdure.sdk.testing import Rehearsal
from tests.sdk_runner.played import done, play

COMPLETION = {
    "object": "chat.completion",
    "model": "m-1",
    "choices": [{"finish_reason": "stop"}],
    "usage": {
        "prompt_tokens": 7,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 2},
    },
}
MESSAGE = {
    "type": "message",
    "model": "m-2",
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 7, "output_tokens": 3, "cache_read_input_tokens": 2},
}
RESULT = {
    "text": "hi",
    "finishReason": "stop",
    "response": {"modelId": "m-3"},
    "usage": {"inputTokens": 7, "outputTokens": 3, "inputTokenDetails": {"cacheReadTokens": 2}},
}


def run(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(story(), 30))


@pytest.mark.parametrize(
    ("answer", "model", "stop"),
    [(COMPLETION, "m-1", "stop"), (MESSAGE, "m-2", "end_turn"), (RESULT, "m-3", "stop")],
)
def test_answers_of_well_known_forms_tell_what_they_used(
    answer: dict[str, Any], model: str, stop: str
) -> None:
    assert read_usage(answer) == Usage(
        model=model, tokens_in=7, tokens_out=3, cached_tokens=2, stop_reason=stop
    )


@pytest.mark.parametrize(
    "answer", ["hi", None, {}, {"usage": "much"}, {"usage": {"input_tokens": "7"}}]
)
def test_other_answers_tell_nothing(answer: object) -> None:
    assert read_usage(answer) is None


def test_a_call_reports_what_it_used_beside_its_result() -> None:
    app = App("shop", price=lambda used: 0.5 if used.model == "m-1" else None)

    async def ask(answer: object) -> object:
        return answer

    @app.workflow("w")
    async def handler(ctx: Context) -> None:
        def broken(answer: object) -> Usage:
            raise KeyError("usage")

        await asyncio.gather(
            ctx.ai.call("read", ask, COMPLETION),
            ctx.ai.call("told", ask, 1, usage=lambda _: Usage(model="m", tokens_out=4, cost=0.1)),
            ctx.ai.call("plain", lambda: "hi"),
            ctx.ai.call("broken", ask, 1, usage=broken),
            ctx.step.run("other", lambda: 1),
        )

    opcodes = play(app, "w").opcodes
    read = opcodes["read"]
    assert read["data"] == COMPLETION
    latency = read["ai"].pop("latencyMs")
    assert read["usage"] == {
        "model": "m-1",
        "tokensIn": 7,
        "tokensOut": 3,
        "cost": 0.5,
        "latencyMs": latency,
    }
    assert read["ai"]["kind"] == "wrap"
    assert (read["ai"]["cacheReadTokens"], read["ai"]["stopReason"]) == (2, "stop")
    assert opcodes["told"]["usage"]["cost"] == 0.1
    assert ("usage" in opcodes["plain"], opcodes["plain"]["ai"]["kind"]) == (False, "wrap")
    assert (opcodes["broken"]["data"], "usage" in opcodes["broken"]) == (1, False)
    assert "ai" not in opcodes["other"]


def test_a_call_is_not_made_by_a_run_that_has_reached_its_cap() -> None:
    made: list[str] = []
    app = App("shop")

    @app.workflow("w")
    async def handler(ctx: Context) -> object:
        await ctx.ai.call("known", made.append, "known")
        return await ctx.ai.call("next", made.append, "next")

    memos = {"known": done(1)}
    within = play(app, "w", memos, spent={"tokens": 99, "cost": 1}, cap={"maxTokens": 100})
    assert ("error" in within.opcodes["next"], made) == (False, ["next"])
    for spent, cap in (
        ({"tokens": 100}, {"maxTokens": 100}),
        ({"tokens": 1, "cost": 0.5}, {"maxCost": 0.5}),
    ):
        refused = play(app, "w", memos, spent=spent, cap=cap).opcodes["next"]
        assert refused["retriable"] is False
        assert "the run has" in refused["error"]["message"]
    assert made == ["next"]


def test_texts_are_embedded_in_batches_and_agents_call_tools() -> None:
    app = App("shop")

    @app.workflow("w")
    async def handler(ctx: Context) -> object:
        vectors = await ctx.ai.embed(
            "e", ["a", "bb", "ccc"], lambda some: [[len(t)] for t in some], model="m", batch_size=2
        )

        async def turn(rounds: list[Any]) -> Turn:
            if not rounds:
                calls = [ToolCall("c1", "add", 2), ToolCall("c2", "add", 3)]
                return Turn(calls=calls, usage=Usage(model="m", tokens_in=5))
            return Turn(final=sum(rounds[0].results.values()))

        looped = await ctx.ai.loop("l", turn, tools={"add": lambda n: n + 1}, turns_max=3)
        endless = await ctx.ai.loop(
            "f", lambda _: Turn(calls=[ToolCall("c", "add", 1)]), tools={"add": int}, turns_max=1
        )
        return [vectors, looped.final, looped.turns, endless.is_final]

    async def story() -> None:
        played = await Rehearsal(app).start("w")
        assert played.output() == [[[1], [2], [3]], 7, 2, False]
        assert {"e:batch:0", "e:batch:1", "l:iter:0", "l:iter:0:tool:c2"} <= set(played.steps)
        assert played.spent.tokens == 5

    run(story)


def test_a_tool_that_is_not_there_fails_the_run() -> None:
    app = App("shop")

    @app.workflow("w")
    async def handler(ctx: Context) -> None:
        await ctx.ai.loop("l", lambda _: Turn(calls=[ToolCall("c", "fly")]), tools={}, turns_max=1)

    async def story() -> None:
        with pytest.raises(RunFailedError, match="'fly'"):
            (await Rehearsal(app).start("w")).output()

    run(story)


def test_caps_models_and_cases_can_be_rehearsed() -> None:
    app = App("shop")

    @app.workflow("w", cap=Cap(tokens_max=10))
    async def handler(ctx: Context) -> None:
        told = await ctx.ai.infer("ask", [{"role": "user", "content": "?"}])
        await ctx.asserts.equals(told.text)
        await ctx.ai.call("a", lambda: COMPLETION)
        with contextlib.suppress(StepFailedError):
            await ctx.ai.infer("more", [])
        await ctx.ai.call("b", lambda: COMPLETION)

    async def story() -> None:
        rehearsal = Rehearsal(app)
        rehearsal.model(lambda messages: f"{len(messages)} messages")
        played = await rehearsal.start("w", expected="1 messages")
        with pytest.raises(RunFailedError, match="10 of 10 tokens"):
            played.output()
        assert played.steps["more"].memo is not None
        assert played.steps["more"].memo.error is not None
        assert [(score["name"], score["value"]) for score in rehearsal.scores] == [("match", 1)]

    run(story)


def test_limits_are_registered_as_they_are_spelled_on_the_wire() -> None:
    async def handler(ctx: Context) -> None:
        """Nothing."""

    made = workflow(
        "w",
        budget=Budget("1h", cost_max=2.5, warn_at_percent=80),
        token_throttle=TokenThrottle(100, "1m", key="user"),
    )(handler)

    assert made.wire()["budget"] == {"windowMs": 3_600_000, "maxCost": 2.5, "warnAtPct": 80}
    assert made.wire()["tokenThrottle"] == {"tokens": 100, "perMs": 60_000, "key": "user"}
    with pytest.raises(ValueError, match="tokens"):
        TokenThrottle(0, "1m").wire()
