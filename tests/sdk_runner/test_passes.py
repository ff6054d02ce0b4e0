"""One pass: from an invoke to its answer."""

import asyncio
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from perdure.sdk import (
    App,
    Concurrency,
    Context,
    NonRetriableError,
    Retry,
    RetryAfterError,
    StepFailedError,
    Throttle,
    workflow,
)
from perdure.sdk.limits import LOG_LINES_MAX, MESSAGE_BYTES_MAX
from perdure.sdk.match import Match
from tests.sdk_runner.played import PENDING, Played, done, failed, play

SAMPLES = json.loads(
    (Path(__file__).parents[1] / "fixtures" / "durablex" / "wire-samples.json").read_text()
)


def an_app(handler: Any, **options: Any) -> App:
    """An app whose only workflow is `w`."""
    return App("shop", [workflow("w", **options)(handler)])


# Dispatch -----------------------------------------------------------------------------------------


def test_an_unknown_workflow_is_refused() -> None:
    async def handler(ctx: Context) -> None: ...

    played = play(an_app(handler), "nope")

    assert played == Played(400, {"error": "unknown workflow: nope"})


def test_without_a_workflow_the_name_of_the_event_decides() -> None:
    async def handler(ctx: Context) -> str:
        return ctx.event.name

    app = App("shop", [workflow("go")(handler)])

    assert play(app, "") == Played(200, {"data": "go", "logs": []})


def test_a_failure_run_goes_to_the_failure_handler_with_the_error() -> None:
    async def handler(ctx: Context) -> None:
        raise AssertionError("not this one")

    async def mourn(ctx: Context) -> str:
        assert ctx.error is not None
        return ctx.error.message

    error = {"message": "card declined"}

    played = play(an_app(handler, on_failure=mourn), "w", onFailure=True, error=error)
    assert played.body["data"] == "card declined"
    played = play(an_app(handler), "w", onFailure=True, error=error)
    assert played == Played(200, {"data": None, "logs": []})


def test_a_handler_sees_its_run_and_its_event() -> None:
    async def handler(ctx: Context) -> list[object]:
        return [ctx.run_id, ctx.workflow, ctx.attempt, ctx.app, ctx.runner, ctx.event.data]

    played = play(an_app(handler), "w", attempt=3, runner="node-7", data={"a": 1})

    assert played.body["data"] == ["01R", "w", 3, "shop", "node-7", {"a": 1}]


# Steps --------------------------------------------------------------------------------------------


def test_a_missing_step_runs_and_is_reported() -> None:
    async def handler(ctx: Context) -> object:
        return await ctx.step.run("charge", lambda: {"chargeId": "ch_A1"})

    assert play(an_app(handler), "w") == Played(
        206, {"opcodes": [SAMPLES["opcodes"][0]], "logs": []}
    )


def test_a_remembered_step_does_not_run_again() -> None:
    async def handler(ctx: Context) -> object:
        return await ctx.step.run("charge", lambda: pytest.fail("ran again"))

    assert play(an_app(handler), "w", {"charge": done(7)}) == Played(200, {"data": 7, "logs": []})


def test_nothing_is_a_result_too() -> None:
    async def handler(ctx: Context) -> object:
        nothing: object = await asyncio.gather(ctx.step.run("nil", lambda: None))
        return nothing

    assert play(an_app(handler), "w").body["opcodes"] == [SAMPLES["opcodes"][1]]
    assert play(an_app(handler), "w", {"nil": done()}).body["data"] == [None]


def test_a_step_that_has_begun_elsewhere_is_neither_run_nor_reported_again() -> None:
    async def handler(ctx: Context) -> None:
        await ctx.step.sleep("nap", "1s")

    assert play(an_app(handler), "w", {"nap": PENDING}) == Played(206, {"opcodes": [], "logs": []})


def test_every_operation_is_spelled_as_the_samples_spell_it() -> None:
    async def handler(ctx: Context) -> None:
        step = ctx.step
        retry = Retry(5, backoff="exponential", delay=100, delay_max="1s")
        await asyncio.gather(
            step.run("x", lambda: 0),
            step.run("x", lambda: [1], input={"in": 1}, retry=retry),
            step.skip("sk", "why"),
            step.skip("sk2"),
            step.sleep("sl", "1.5s"),
            step.sleep_until("su", datetime(2030, 1, 1, tzinfo=UTC)),
            step.wait_for_event("w", "pay", timeout="1h"),
            step.wait_for_event("w2", "pay", timeout=3_600_000, where="event.data.x == 1"),
            step.run_workflow("c", "child", {"d": 1}, app="b", runner="n"),
            step.run_workflow("c2", "child"),
            step.emit("em", "ev", None, app="z", dedupe_id="dd"),
            step.emit("em2", "ev"),
            ctx.webhook.send("wh", "https://example.com/hook", {"p": 1}),
            step.approval(
                "ap",
                "refund",
                {"amt": 1},
                risk="high",
                summary="s",
                policy="p",
                context="c",
                escalates_to="boss",
                timeout="2h",
            ),
            step.infer("inf", [{"role": "user", "content": "hi"}], model="m", tokens_max=10),
            ctx.score("acc", True, comment="c", run_id="01RUN", source="code"),
        )

    expected = {o["name"]: o for o in SAMPLES["opcodes"] if o["name"] not in ("charge", "nil")}
    del expected["s"], expected["wrap"]  # failures below; journals of model calls not at all
    played = play(an_app(handler), "w")

    assert played.names == ["x", *expected]
    assert {name: played.opcodes[name] for name in expected} == expected


def test_a_match_is_sent_as_values_and_not_as_a_text() -> None:
    match: Match = {"data.id": "x' || 'a' == 'a", "data.n": 1, "data.half": 0.5, "data.none": None}

    async def handler(ctx: Context) -> None:
        await ctx.step.wait_for_event("w", "pay", timeout=5, match=match)

    opcode = play(an_app(handler), "w").opcodes["w"]

    assert (opcode["match"], "eventIf" in opcode) == (match, False)


@pytest.mark.parametrize(
    "match",
    [
        {},
        {"id": 1},
        {"event.data.id": 1},
        {"data.": 1},
        {1: 1},
        {"data.id": [1]},
        {"data.id": {}},
        {"data.id": b"1"},
        {"data.id": float("nan")},
        {"data.id": Decimal(1)},
    ],
)
def test_a_match_that_makes_no_sense_fails_the_run(match: Any) -> None:
    async def handler(ctx: Context) -> None:
        await ctx.step.wait_for_event("w", "pay", timeout=5, match=match)

    played = play(an_app(handler), "w")

    assert played.status == 400, "another try would find the same"
    assert "step 'w'" in played.body["error"]


def test_an_engine_that_ignores_matches_is_found_out() -> None:
    async def handler(ctx: Context) -> object:
        return await ctx.step.wait_for_event("w", "pay", timeout=5, match={"data.id": 1})

    app = an_app(handler)
    assert play(app, "w", {"w": done({"id": 1.0})}).status == 200
    assert play(app, "w", {"w": done(None)}).status == 200
    told = play(app, "w", {"w": done({"id": 2})})
    assert told.status == 400
    assert "ignores match=" in told.body["error"]


def test_results_of_the_engine_come_back_as_values() -> None:
    async def handler(ctx: Context) -> object:
        approval = await ctx.step.approval("ap", "refund")
        inference = await ctx.step.infer("inf", [])
        return [
            await asyncio.gather(ctx.step.sleep("sl", 1), ctx.step.emit("em", "ev")),
            await ctx.step.wait_for_event("w", "pay", timeout=1),
            await ctx.step.run_workflow("c", "child"),
            [approval.is_approved, approval.args, approval.decided_by],
            [inference.text, inference.model],
        ]

    decided = {"status": "approved", "args": {"amt": 2}, "decidedBy": "me"}
    played = play(
        an_app(handler),
        "w",
        {
            "sl": done(),
            "w": done({"paid": True}),
            "c": done([1]),
            "em": done("whatever"),
            "ap": done(decided),
            "inf": done({"text": "hello", "model": "m"}),
        },
    )

    assert played.body["data"] == [
        [None, None],
        {"paid": True},
        [1],
        [True, {"amt": 2}, "me"],
        ["hello", "m"],
    ]


def test_a_result_can_be_made_into_a_class() -> None:
    @dataclass
    class Receipt:
        id: str
        at: datetime

    async def charge(amount: int) -> Receipt:
        return Receipt(f"r{amount}", datetime(2030, 1, 1, tzinfo=UTC))

    async def handler(ctx: Context) -> object:
        receipt = await ctx.step.run("charge", charge, 5, returns=Receipt)
        return [receipt.id, receipt.at + timedelta(days=1)]

    sent = play(an_app(handler), "w").opcodes["charge"]["data"]

    assert sent == {"id": "r5", "at": "2030-01-01T00:00:00Z"}
    again = play(an_app(handler), "w", {"charge": done(sent)})
    assert again.body["data"] == ["r5", "2030-01-02T00:00:00Z"]
    other = play(an_app(handler), "w", {"charge": done("of another version")})
    assert other.status == 400
    assert "has another result" in other.body["error"]


def test_a_step_called_in_another_is_refused_and_tried_no_more() -> None:
    async def handler(ctx: Context) -> None:
        async def body() -> None:
            await ctx.step.run("inner", lambda: 1)

        await ctx.step.run("outer", body)

    opcode = play(an_app(handler), "w").opcodes["outer"]

    assert opcode["retriable"] is False
    assert opcode["error"]["message"] == "step 'inner' was called inside step 'outer'"


def test_colliding_names_fail_the_run_at_once() -> None:
    async def handler(ctx: Context) -> None:
        await asyncio.gather(*(ctx.step.sleep(id, 1) for id in ("x:1", "x", "x")))

    played = play(an_app(handler), "w")

    # What was asked before is reported first; the next pass says what is wrong.
    assert (played.status, played.names) == (206, ["x:1", "x"])
    again = play(an_app(handler), "w", {"x:1": done(), "x": done()})
    assert again.status == 400
    assert "another step has" in again.body["error"]


@pytest.mark.parametrize("wrong", ["10", "1w", float("nan")])
def test_a_wrong_argument_fails_the_run_at_once(wrong: Any) -> None:
    async def handler(ctx: Context) -> None:
        await ctx.step.sleep("nap", wrong)

    played = play(an_app(handler), "w")

    assert played.status == 400
    assert "is no duration" in played.body["error"]


# Failures -----------------------------------------------------------------------------------------


def test_a_failing_body_is_reported_with_its_stack_and_policy() -> None:
    async def handler(ctx: Context) -> None:
        await ctx.step.run("s", lambda: 1 // 0, retry=Retry(3), input=[1])

    opcode = play(an_app(handler), "w").opcodes["s"]

    assert opcode["error"]["message"] == "integer division or modulo by zero"
    assert "ZeroDivisionError" in opcode["error"]["stack"]
    assert "test_passes.py" in opcode["error"]["stack"]
    assert "perdure" not in opcode["error"]["stack"].replace("/perdure/tests", "")
    assert (opcode["retry"], opcode["input"]) == ({"maxAttempts": 3}, [1])
    assert "data" not in opcode
    assert "retriable" not in opcode


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (NonRetriableError("no"), {"retriable": False}),
        (RetryAfterError("later", "30s"), {"retryAfterMs": 30_000}),
        (RetryAfterError("later", 250), {"retryAfterMs": 250}),
        (RetryAfterError("later", datetime(2000, 1, 1, tzinfo=UTC)), {"retryAfterMs": 0}),
    ],
    ids=["never", "duration", "number", "past"],
)
def test_an_error_can_say_how_to_go_on(raised: Exception, told: dict[str, object]) -> None:
    async def handler(ctx: Context) -> None:
        async def body() -> None:
            raise raised

        await ctx.step.run("s", body)

    opcode = play(an_app(handler), "w").opcodes["s"]

    assert opcode["error"]["message"] == str(raised)
    assert {key: opcode.get(key) for key in told} == told


def test_a_result_that_json_cannot_carry_fails_the_step_for_good() -> None:
    async def handler(ctx: Context) -> None:
        await asyncio.gather(
            ctx.step.run("object", object),
            ctx.step.run("half", lambda: "\ud800"),
            ctx.step.run("large", lambda: "x" * (MESSAGE_BYTES_MAX + 1)),
            ctx.step.run("fine", lambda: "x"),
        )

    opcodes = play(an_app(handler), "w").opcodes

    for name in ("object", "half", "large"):
        assert opcodes[name]["retriable"] is False, name
        assert "data" not in opcodes[name]
    assert opcodes["fine"]["data"] == "x"


def test_a_handler_that_raises_is_a_500_with_its_logs() -> None:
    async def handler(ctx: Context) -> None:
        ctx.log("so far")
        raise RuntimeError("boom")

    played = play(an_app(handler), "w")

    assert played.status == 500
    assert played.body["error"] == "boom"
    assert played.lines == [("@root", 0, "so far")]


def test_a_handler_that_gives_up_fails_the_run_at_once() -> None:
    async def handler(ctx: Context) -> None:
        raise NonRetriableError("no use")

    assert play(an_app(handler), "w") == Played(400, {"error": "no use", "logs": []})


def test_a_failed_child_can_be_caught() -> None:
    async def careful(ctx: Context) -> str:
        try:
            await ctx.step.run_workflow("kid", "child")
        except StepFailedError as error:
            return f"{error.step}: {error}"
        return "fine"

    async def careless(ctx: Context) -> None:
        await ctx.step.run_workflow("kid", "child")

    memos = {"kid": failed("kid failed")}

    assert play(an_app(careful), "w", memos).body["data"] == "kid: kid failed"
    assert play(an_app(careless), "w", memos) == Played(400, {"error": "kid failed", "logs": []})


def test_what_steps_did_is_reported_before_the_handler_has_its_say() -> None:
    """A result thrown away would be worked for twice."""

    async def raising(ctx: Context) -> None:
        ctx.step.run("a", asyncio.sleep, 0)
        raise RuntimeError("boom")

    async def returning(ctx: Context) -> None:
        ctx.step.emit("e", "ev")

    first = play(an_app(raising), "w")
    assert (first.status, first.names) == (206, ["a"])
    assert play(an_app(raising), "w", {"a": done()}).status == 500
    first = play(an_app(returning), "w")
    assert (first.status, first.names) == (206, ["e"])
    assert play(an_app(returning), "w", {"e": done()}).status == 200


def test_a_reply_over_the_limit_is_refused_here() -> None:
    async def handler(ctx: Context) -> None:
        half = "x" * (MESSAGE_BYTES_MAX // 2)
        await asyncio.gather(*(ctx.step.run("s", lambda: half) for _ in range(3)))

    played = play(an_app(handler), "w")

    assert played.status == 500
    assert str(MESSAGE_BYTES_MAX) in played.body["error"]


def test_a_name_that_no_message_can_carry_fails_the_run_at_once() -> None:
    async def handler(ctx: Context) -> None:
        await ctx.step.emit("e", "half \ud800")

    played = play(an_app(handler), "w")

    assert played.status == 400
    assert played.body["error"].startswith("this reply cannot be sent")


# Logs ---------------------------------------------------------------------------------------------


def test_lines_know_their_step_even_when_steps_run_at_once() -> None:
    async def handler(ctx: Context) -> None:
        async def body(name: str) -> None:
            ctx.log.debug(f"{name} begins")
            await asyncio.sleep(0)
            ctx.log.warn(f"{name} ends", {"k": 1}, more=2)

        ctx.log("top")
        await asyncio.gather(ctx.step.run("a", body, "a"), ctx.step.run("b", body, "b"))

    played = play(an_app(handler), "w")

    assert played.lines == [
        ("@root", 0, "top"),
        ("a", 0, "a begins"),
        ("b", 0, "b begins"),
        ("a", 1, "a ends"),
        ("b", 1, "b ends"),
    ]
    assert [line["level"] for line in played.body["logs"]] == [
        *("info", "debug", "debug", "warn", "warn")
    ]
    assert played.body["logs"][-1]["fields"] == {"k": 1, "more": 2}
    assert played.body["logs"][0] == {
        "level": "info",
        "message": "top",
        "scope": "@root",
        "index": 0,
        "tsMs": 1718900000000,
    }


def test_a_chatty_pass_ships_a_thousand_lines_and_says_how_many_it_dropped() -> None:
    async def handler(ctx: Context) -> None:
        for number in range(LOG_LINES_MAX + 7):
            ctx.log.info(f"line {number}")

    lines = play(an_app(handler), "w").body["logs"]

    assert len(lines) == LOG_LINES_MAX + 1
    assert lines[-1]["level"] == "error"
    assert lines[-1]["message"].startswith("7 more lines")


def test_no_line_can_spoil_a_pass() -> None:
    async def handler(ctx: Context) -> None:
        ctx.log("half \ud800", {"what": object(), "\ud800": 1})
        ctx.log("object", thing=object(), fine=1)

    logs = play(an_app(handler), "w").body["logs"]

    assert logs[0]["message"] == "half ?"
    assert logs[1]["fields"]["fine"] == 1
    assert logs[1]["fields"]["thing"].startswith("<object")


# Definitions --------------------------------------------------------------------------------------


def test_a_workflow_must_be_async_and_named_once() -> None:
    async def handler(ctx: Context) -> None: ...

    with pytest.raises(TypeError, match="async function"):
        workflow("w")(lambda ctx: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(ValueError, match="needs a name"):
        workflow(" ")
    with pytest.raises(ValueError, match="two workflows"):
        App("shop", [workflow("w")(handler), workflow("w")(handler)])


@pytest.mark.parametrize("given", [5, None, b"x"])
def test_the_id_of_a_step_is_a_text(given: Any) -> None:
    async def handler(ctx: Context) -> None:
        await ctx.step.skip(given)

    played = play(an_app(handler), "w")

    assert played.status == 400
    assert "is a text" in played.body["error"]


def test_a_step_needs_the_function_not_its_result() -> None:
    async def charge() -> int:
        return 1

    async def handler(ctx: Context) -> None:
        await ctx.step.run("charge", charge())  # type: ignore[call-overload]

    played = play(an_app(handler), "w")

    assert played.status == 400
    assert "needs a function" in played.body["error"]


def test_long_words_do_not_crowd_out_results() -> None:
    async def handler(ctx: Context) -> None:
        def wordy() -> None:
            raise RuntimeError("x" * MESSAGE_BYTES_MAX)

        for _ in range(50):
            ctx.log("y" * 100_000)
        await asyncio.gather(ctx.step.run("wordy", wordy), ctx.step.run("fine", lambda: 1))

    played = play(an_app(handler), "w")

    assert played.opcodes["fine"]["data"] == 1
    assert len(played.opcodes["wordy"]["error"]["message"]) < 10_000
    assert len(played.body["logs"]) == 3
    assert played.body["logs"][-1]["message"].startswith("48 more lines")


def test_wrong_policies_are_refused_where_they_are_written() -> None:
    async def handler(ctx: Context) -> None: ...

    with pytest.raises(ValueError, match="attempts must be a positive whole number"):
        Retry(0)
    with pytest.raises(ValueError, match="is no duration"):
        Retry(2, delay="soon")
    with pytest.raises(ValueError, match="limit must be a positive whole number"):
        workflow("w", concurrency=Concurrency(0))
    with pytest.raises(ValueError, match="per must be a positive whole number"):
        workflow("w", throttle=Throttle(1, 0))
    assert workflow("w", more={"budget": {"windowMs": 1}})(handler).wire() == {
        "name": "w",
        "budget": {"windowMs": 1},
    }


# A handler that ends beside its steps -------------------------------------------------------------


def test_a_handler_that_ends_beside_steps_says_that_it_has_ended() -> None:
    async def handler(ctx: Context) -> str:
        ctx.step.sleep("nap", "1h")
        ctx.step.wait_for_event("news", "paid", timeout="2h")
        ctx.step.run("work", str, 1)
        return "done"

    played = play(an_app(handler), "w")
    assert (played.status, played.names) == (206, ["nap", "news", "work"])
    assert played.body["ended"] is True

    steps = {"nap": PENDING, "news": PENDING, "work": done("1")}
    assert play(an_app(handler), "w", steps) == Played(200, {"data": "done", "logs": []})


def test_a_handler_that_raises_beside_steps_says_that_it_has_ended() -> None:
    async def handler(ctx: Context) -> None:
        ctx.step.sleep("nap", "1h")
        raise RuntimeError("no")

    assert play(an_app(handler), "w").body["ended"] is True
    assert play(an_app(handler), "w", {"nap": PENDING}).status == 500


def test_a_handler_that_waits_does_not_say_so() -> None:
    async def handler(ctx: Context) -> None:
        await ctx.step.sleep("nap", "1h")

    assert "ended" not in play(an_app(handler), "w").body


# Steps that take long -----------------------------------------------------------------------------


def test_a_step_that_takes_longer_than_it_may_has_failed() -> None:
    async def handler(ctx: Context) -> None:
        await ctx.step.run("endless", asyncio.Event().wait, timeout=1)

    played = play(an_app(handler), "w")

    opcode = played.opcodes["endless"]
    assert opcode["error"]["message"] == "the step took longer than its 0.001 s"
    assert "retriable" not in opcode, "it is tried again as its policy says"


def test_a_step_that_takes_longer_than_a_pass_asks_for_a_longer_one() -> None:
    ran: list[str] = []

    async def handler(ctx: Context) -> None:
        await asyncio.gather(
            ctx.step.run("long", lambda: ran.append("long"), timeout="20m"),
            ctx.step.run("short", lambda: ran.append("short"), timeout="1m"),
        )

    played = play(an_app(handler), "w", passTimeoutMs=300_000)
    assert played.opcodes["long"]["op"] == "ExtendPass"
    assert played.opcodes["long"]["timeoutMs"] == 1_205_000
    assert (played.opcodes["short"]["op"], ran) == ("StepRun", ["short"])

    played = play(an_app(handler), "w", {"short": done()}, passTimeoutMs=1_205_000)
    assert (played.opcodes["long"]["op"], ran) == ("StepRun", ["short", "long"])
    assert play(an_app(handler), "w", {"long": done(), "short": done()}).status == 200


def test_an_engine_that_does_not_say_how_long_it_waits_is_not_asked() -> None:
    async def handler(ctx: Context) -> None:
        await ctx.step.run("long", lambda: 1, timeout="20m")

    assert play(an_app(handler), "w").opcodes["long"]["op"] == "StepRun"


@pytest.mark.parametrize("timeout", ["8d", 0, "soon"])
def test_a_timeout_that_makes_no_sense_ends_the_run(timeout: object) -> None:
    async def handler(ctx: Context) -> None:
        await ctx.step.run("a", lambda: 1, timeout=timeout)  # type: ignore[call-overload]

    assert play(an_app(handler), "w").status == 400


def test_a_workflow_registers_how_long_its_passes_may_take() -> None:
    async def handler(ctx: Context) -> None: ...

    [told] = [one.wire() for one in an_app(handler, pass_timeout="1h")]
    assert told["passTimeoutMs"] == 3_600_000
