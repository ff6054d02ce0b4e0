"""The test kit: runs from start to end without an engine and without waiting."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from perdure.sdk import (
    App,
    Context,
    Event,
    NonRetriableError,
    Retry,
    RetryAfterError,
    RunFailedError,
    StepFailedError,
)
from perdure.sdk import testing as kit
from perdure.sdk.testing import Rehearsal, backoff_ms
from perdure.sdk.wire import AppEvent

VECTORS = Path(__file__).parents[1] / "fixtures" / "durablex"


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(90):
            await story()

    asyncio.run(main())


def test_sleeps_and_waits_end_when_time_or_news_come() -> None:
    app = App("shop")

    @app.workflow("w")
    async def handler(ctx: Context) -> object:
        await ctx.step.sleep("nap", "1h")
        news = await ctx.step.wait_for_event("news", "paid", timeout="2h")
        nothing = await ctx.step.wait_for_event("more", "paid", timeout="2h")
        return [news, nothing]

    async def story() -> None:
        rehearsal = Rehearsal(app)
        played = await rehearsal.start("w")
        assert (played.status, played.waits_for) == ("waiting", ["nap"])
        await rehearsal.advance("59m")
        await rehearsal.send("paid", "too early")
        assert played.waits_for == ["nap"]
        await rehearsal.advance("1m")
        await rehearsal.send("paid", {"by": "card"})
        assert played.waits_for == ["more"]
        await rehearsal.advance("1d")
        assert played.output() == [{"by": "card"}, None]

    run(story)


def test_steps_are_tried_by_their_policy() -> None:
    app = App("shop")
    tries: list[int] = []

    @app.workflow("w", retry=Retry(3, backoff="exponential", delay="1s"))
    async def handler(ctx: Context) -> object:
        async def body() -> int:
            tries.append(ctx.attempt)
            ctx.log("try")
            return len(tries)

        ctx.log("top")
        return await ctx.step.run("s", body)

    async def story() -> None:
        rehearsal = Rehearsal(app)
        rehearsal.fail("s", RuntimeError("busy"), times=2)
        played = await rehearsal.start("w")
        assert played.steps["s"].attempt == 1
        await rehearsal.advance("999ms")
        assert played.steps["s"].attempt == 1
        await rehearsal.advance("1ms")
        assert played.steps["s"].attempt == 2
        await rehearsal.advance("2s")
        assert played.output() == 1
        assert tries == [3]
        assert played.logs.count(("info", "s", "try")) == 1
        assert played.logs.count(("info", "@root", "top")) == 3  # once per attempt of the run

    run(story)


def test_the_last_try_fails_the_run_and_calls_the_failure_handler() -> None:
    app = App("shop")

    @app.workflow("w", retry=Retry(2))
    async def handler(ctx: Context) -> None:
        await ctx.step.run("s", lambda: 1 // 0)

    @handler.on_failure
    async def mourn(ctx: Context) -> str:
        assert ctx.error is not None
        return await ctx.step.run("write", lambda: f"sorry: {ctx.error and ctx.error.message}")

    async def story() -> None:
        rehearsal = Rehearsal(app)
        played = await rehearsal.start("w")
        await rehearsal.advance("1s")
        assert played.status == "failed"
        with pytest.raises(RunFailedError, match="division"):
            played.output()
        follower = rehearsal.runs[1]
        assert follower.failure_of is played
        assert follower.output() == "sorry: integer division or modulo by zero"

    run(story)


@pytest.mark.parametrize(
    ("error", "status"),
    [(NonRetriableError("no"), "failed"), (RetryAfterError("x", "5s"), "waiting")],
)
def test_errors_choose_what_follows(error: Exception, status: str) -> None:
    app = App("shop")

    @app.workflow("w", retry=Retry(5))
    async def handler(ctx: Context) -> object:
        return await ctx.step.run("s", lambda: 1)

    async def story() -> None:
        rehearsal = Rehearsal(app)
        rehearsal.fail("s", error)
        played = await rehearsal.start("w")
        assert played.status == status
        await rehearsal.advance("4s")
        assert played.status == status
        await rehearsal.advance("1s")
        assert played.status == ("failed" if status == "failed" else "succeeded")

    run(story)


def test_children_events_and_effects() -> None:
    app = App("shop")

    @app.workflow("parent", on="order.*")
    async def parent(ctx: Context) -> object:
        good, other = await asyncio.gather(
            ctx.step.run_workflow("good", "child", {"n": 2}),
            ctx.step.run_workflow("other", "elsewhere", 5, app="b"),
        )
        try:
            await ctx.step.run_workflow("bad", "child", {"n": 0})
        except StepFailedError as error:
            await ctx.step.emit("tell", "oops", {"why": str(error)})
        await ctx.webhook.send("hook", "https://example.com", {"good": good})
        await ctx.score("fine", True)
        return [good, other]

    @app.workflow("child", on=[])
    async def child(ctx: Context) -> object:
        await ctx.step.sleep("nap", "1s")
        return await ctx.step.run("divide", lambda: 10 // ctx.event.data["n"])

    @app.workflow("listener", on=Event("oops", where="event.data.why != ''"))
    async def listener(ctx: Context) -> object:
        return ctx.event.data

    async def story() -> None:
        rehearsal = Rehearsal(app, matches=lambda expression, event: bool(event.data["why"]))
        rehearsal.child("elsewhere", lambda data: data + 1)
        [played] = await rehearsal.send("order.created", {})
        await rehearsal.advance("2s")
        assert played.output() == [5, 6]
        assert [event.name for event in rehearsal.emitted] == ["oops"]
        assert rehearsal.runs[-1].workflow == "listener"
        assert "division" in rehearsal.runs[-1].output()["why"]
        assert rehearsal.delivered == [("https://example.com", {"good": 5})]
        assert rehearsal.scores[0]["value"] == 1

    run(story)


def test_a_match_lets_only_the_event_through_that_is_meant() -> None:
    app = App("shop")

    @app.workflow("w")
    async def handler(ctx: Context) -> object:
        match = {"data.order.id": ctx.event.data, "data.final": True}
        return await ctx.step.wait_for_event("paid", "paid", match=match, timeout="1h")

    async def story() -> None:
        rehearsal = Rehearsal(app)
        texts = [await rehearsal.start("w", text) for text in ("O'Hara", "x' || 'a' == 'a")]
        one, null = await rehearsal.start("w", 1), await rehearsal.start("w", None)
        others: list[object] = ["x", "1", True, 1.5, [1], {}]
        await rehearsal.send("paid")
        for value in others:
            await rehearsal.send("paid", {"order": {"id": value}, "final": True})
            await rehearsal.send("paid", {"order": value, "final": True})
            await rehearsal.send("paid", value)
        await rehearsal.send("paid", {"order": {"id": 1}, "final": 1})
        assert {waited.status for waited in (*texts, one, null)} == {"waiting"}

        values = ("O'Hara", "x' || 'a' == 'a", 1.0, None)
        for waited, value in zip((*texts, one, null), values, strict=True):
            event = {"order": {"id": value}, "final": True}
            await rehearsal.send("paid", event)
            assert waited.output() == event

    run(story)


def test_a_filter_may_read_the_event_that_started_its_run() -> None:
    app = App("shop")

    @app.workflow("w", on=Event("order", where="event.data.id > 0"))
    async def handler(ctx: Context) -> object:
        where = "event.data.total >= trigger.data.total"
        match = {"data.id": ctx.event.data["id"]}
        return await ctx.step.wait_for_event("p", "paid", match=match, where=where, timeout="1h")

    def decide(expression: str, event: AppEvent, trigger: AppEvent) -> bool:
        if "trigger" in expression:
            return bool(event.data["total"] >= trigger.data["total"])
        assert trigger is event
        return bool(event.data["id"] > 0)

    async def story() -> None:
        rehearsal = Rehearsal(app, matches=decide)
        assert await rehearsal.send("order", {"id": 0}) == []
        [played] = await rehearsal.send("order", {"id": 1, "total": 5})
        await rehearsal.send("paid", {"id": 1, "total": 4})
        await rehearsal.send("paid", {"id": 2, "total": 6})
        assert played.status == "waiting"
        await rehearsal.send("paid", {"id": 1, "total": 6})
        assert played.output() == {"id": 1, "total": 6}

    run(story)


def test_approvals_are_decided_or_run_out() -> None:
    app = App("shop")

    @app.workflow("w")
    async def handler(ctx: Context) -> object:
        first = await ctx.step.approval("first", "refund", {"amount": 5}, timeout="1h")
        second = await ctx.step.approval("second", "refund", timeout="1h")
        return [first.is_approved, first.args, second.is_approved, second.decided_by]

    async def story() -> None:
        rehearsal = Rehearsal(app)
        played = await rehearsal.start("w")
        await rehearsal.decide(played, "first", approve=True, args={"amount": 3})
        await rehearsal.advance("1h")
        assert played.output() == [True, {"amount": 3}, False, "system:timeout"]

    run(story)


def test_somebody_else_is_asked_before_an_approval_runs_out() -> None:
    app = App("shop")

    @app.workflow("w")
    async def handler(ctx: Context) -> object:
        asked = await ctx.step.approval("ok", "refund", 5, escalates_to="boss", timeout="1h")
        return [asked.status, asked.args, asked.decided_by]

    async def story() -> None:
        rehearsal = Rehearsal(app)
        late, saved = await rehearsal.start("w"), await rehearsal.start("w")
        await rehearsal.advance("1h")
        assert late.steps["ok"].is_escalated
        await rehearsal.decide(saved, "ok", approve=True, by="boss")
        await rehearsal.advance("1h")
        assert saved.output() == ["approved", 5, "boss"]
        assert late.output() == ["denied", 5, "system:timeout"]

    run(story)


def test_a_fork_tries_something_else_from_a_step_on() -> None:
    app = App("shop")
    bodies: list[str] = []

    @app.workflow("w")
    async def handler(ctx: Context) -> object:
        def first() -> int:
            bodies.append("first")
            return 1

        model = ctx.fork.model if ctx.fork else "usual"
        one = await ctx.step.run("first", first)
        return [one, await ctx.step.run("ask", lambda: model)]

    async def story() -> None:
        rehearsal = Rehearsal(app)
        played = await rehearsal.start("w")
        forked = await rehearsal.fork(played, "ask", model="other")
        assert played.output() == [1, "usual"]
        assert forked.output() == [1, "other"]
        assert bodies == ["first"]

    run(story)


def test_checks_are_scores_and_the_code_goes_on() -> None:
    app = App("shop")

    @app.workflow("w")
    async def handler(ctx: Context) -> object:
        await ctx.step.run("a", int)
        await ctx.step.run("b", int)
        return [
            await ctx.asserts.used_step("a"),
            await ctx.asserts.used_step("c"),
            await ctx.asserts.sequence(["a", "b"]),
            await ctx.asserts.sequence(["b", "a"], name="backwards", comment="no"),
            await ctx.asserts.equals({"a": 1, "b": [True]}, {"b": [True], "a": 1}),
            await ctx.asserts.equals(1, True, name="types"),
        ]

    async def story() -> None:
        rehearsal = Rehearsal(app)
        played = await rehearsal.start("w")
        assert played.output() == [True, False, True, False, True, False]
        assert [(told["name"], told["value"]) for told in rehearsal.scores] == [
            ("used:a", 1),
            ("used:c", 0),
            ("sequence", 1),
            ("backwards", 0),
            ("match", 1),
            ("types", 0),
        ]
        assert rehearsal.scores[1]["comment"] == "step 'c' did not run"

    run(story)


def test_a_poll_asks_until_there_is_an_answer() -> None:
    app = App("shop")
    asked: list[int] = []

    @app.workflow("w")
    async def handler(ctx: Context) -> object:
        async def probe() -> int:
            asked.append(1)
            return len(asked)

        first = await ctx.step.poll("p", probe, every="1s", timeout="1m", until=lambda n: n > 2)
        nothing: int | None = None
        await ctx.step.poll("q", lambda: nothing, every="1s", timeout="3s")
        return first

    async def story() -> None:
        rehearsal = Rehearsal(app)
        played = await rehearsal.start("w")
        await rehearsal.advance("2s")
        assert played.steps["p:probe:2"].output == 3
        await rehearsal.advance("3s")
        with pytest.raises(RunFailedError, match="'q' had no answer within 3s"):
            played.output()
        assert [name for name in played.steps if name.startswith("q:probe")] == [
            *("q:probe:0", "q:probe:1", "q:probe:2")
        ]

    run(story)


def test_a_batch_and_a_replaced_step() -> None:
    app = App("shop")

    @app.workflow("w")
    async def handler(ctx: Context) -> object:
        return [
            [event.data for event in ctx.events],
            await ctx.step.run("outside", lambda: pytest.fail("not in a test")),
        ]

    async def story() -> None:
        rehearsal = Rehearsal(app)
        rehearsal.replace("outside", lambda: "replaced")
        played = await rehearsal.start_batch("w", [("e", 1), ("e", 2)])
        assert played.output() == [[1, 2], "replaced"]

    run(story)


def test_a_handler_that_never_ends_is_told_apart() -> None:
    app = App("shop")

    @app.workflow("w")
    async def handler(ctx: Context) -> None:
        while True:
            await ctx.step.skip("again")

    async def story() -> None:
        with pytest.raises(AssertionError, match="does not end"):
            await Rehearsal(app).start("w")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kit, "PASSES_MAX", 50)
        run(story)


def test_delays_are_those_of_the_vectors() -> None:
    cases: list[dict[str, Any]] = json.loads((VECTORS / "retry-backoff.json").read_text())["cases"]
    for case in cases:
        for attempt, delay in case["delayMsAfterFailedAttempt"].items():
            assert backoff_ms(case["policy"], int(attempt)) == delay


def test_steps_that_nobody_awaits_do_not_keep_a_run_open() -> None:
    app = App("shop")

    @app.workflow("w")
    async def handler(ctx: Context) -> str:
        ctx.step.sleep("nap", "1h")
        ctx.step.run("work", str, 1)
        return "done"

    async def story() -> None:
        played = await Rehearsal(app).start("w")
        assert (played.status, played.result) == ("succeeded", "done")

    run(story)
