"""Steps for which the engine waits: time, events, children; alone and side by side."""

import asyncio
from typing import Any

import pytest

from perdure.core.limits import WAITERS_PER_PAGE_MAX
from tests.engine.waiting import Begin, Begun, a_wait
from tests.support.http import PATIENCE_SECONDS, Json, Wire
from tests.support.runner import (
    Invoke,
    a_runner,
    broke,
    emit,
    op,
    ran,
    rows,
    settled,
    show,
    start,
    steps,
    workflow,
)

PENDING = {"pending": True}
DONE = {"data": None}


def test_a_sleep_ends_when_its_time_has_come_and_not_before(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")

    runner.next().found(op("Sleep", "nap", sleepMs=10_000))
    settled(wire, run_id, "waiting")
    (step,) = steps(wire, run_id)
    assert (step["status"], step["name"]) == ("waiting", "nap")
    assert step["runAfter"]
    wire.advance(seconds=9.9)
    assert runner.has_nothing()
    wire.advance(seconds=0.2)
    invoke = runner.next()
    assert invoke.memo("nap") == DONE
    invoke.returned()

    assert settled(wire, run_id, "succeeded")["attempt"] == 1


def test_a_sleep_until_a_time_that_is_over_ends_at_once(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")

    runner.next().found(op("SleepUntil", "nap", sleepUntilMs=1_000))
    runner.next().found(op("SleepUntil", "later", sleepUntilMs=1_767_225_600_000 + 5_000))
    settled(wire, run_id, "waiting")
    wire.advance(seconds=5.1)
    runner.next().returned()

    settled(wire, run_id, "succeeded")


def test_an_event_wakes_everybody_who_waits_for_it_once(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    first, second = start(wire, "order"), start(wire, "order")
    for _ in range(2):
        runner.next().found(op("WaitForEvent", "paid", eventName="pay", timeoutMs=60_000))
    settled(wire, first, "waiting")
    settled(wire, second, "waiting")

    assert emit(wire, "pays")["woke"] == 0
    told = emit(wire, "pay", {"by": "card"})

    assert told["woke"] == 2
    for _ in range(2):
        invoke = runner.next()
        assert invoke.memo("paid") == {"data": {"by": "card"}}
        invoke.returned()
    settled(wire, first, "succeeded")
    settled(wire, second, "succeeded")
    assert emit(wire, "pay")["woke"] == 0
    assert steps(wire, first)[0]["eventName"] == "pay"


def test_a_wait_that_is_in_vain_ends_with_nothing(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")
    runner.next().found(op("WaitForEvent", "paid", eventName="pay", timeoutMs=60_000))
    settled(wire, run_id, "waiting")

    wire.advance(seconds=61)
    invoke = runner.next()

    assert invoke.memo("paid") == DONE
    assert emit(wire, "pay")["woke"] == 0
    invoke.returned()
    settled(wire, run_id, "succeeded")


def test_a_filter_says_which_event_is_meant(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")
    wait = op("WaitForEvent", "paid", eventName="pay", timeoutMs=60_000)
    runner.next().found(wait | {"eventIf": "event.data.total > 100"})
    settled(wire, run_id, "waiting")

    assert emit(wire, "pay", {"total": 100})["woke"] == 0
    assert emit(wire, "pay", {"sum": 1000})["woke"] == 0
    assert emit(wire, "pay")["woke"] == 0
    assert emit(wire, "pay", {"total": 100.5})["woke"] == 1

    assert runner.next().memo("paid") == {"data": {"total": 100.5}}


def test_a_filter_reads_the_event_that_started_its_run(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    wait = op("WaitForEvent", "paid", eventName="pay", timeoutMs=60_000)
    for customer in ("O'Hara", "x' || 'a' == 'a"):
        started = emit(wire, "order", {"id": customer})
        runner.next().found(wait | {"eventIf": "event.data.id == trigger.data.id"})
        settled(wire, started["runId"], "waiting")

    assert emit(wire, "pay", {"id": "somebody"})["woke"] == 0
    assert emit(wire, "pay", {"id": "O'Hara"})["woke"] == 1
    assert emit(wire, "pay", {"id": "x' || 'a' == 'a"})["woke"] == 1


def test_a_match_compares_values_and_pastes_nothing_into_a_filter(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    wait = op("WaitForEvent", "paid", eventName="pay", timeoutMs=60_000)
    runs = []
    for customer in ("O'Hara", "x' || 'a' == 'a", 7):
        runs.append(start(wire, "order"))
        runner.next().found(wait | {"match": {"data.by.id": customer}})
        settled(wire, runs[-1], "waiting")

    others: list[Any] = [{"by": {"id": "somebody"}}, {"by": {"id": "7"}}, {"by": {}}, {}, "7", None]
    for data in others:
        assert emit(wire, "pay", data)["woke"] == 0
    assert emit(wire, "pay", {"by": {"id": "O'Hara"}})["woke"] == 1
    assert emit(wire, "pay", {"by": {"id": "x' || 'a' == 'a"}})["woke"] == 1
    told = emit(wire, "pay", {"by": {"id": 7.0}, "total": 5})
    assert told["woke"] == 1
    assert "continues" not in told
    memos = [runner.next().memo("paid") for _ in runs]
    assert memos[-1] == {"data": {"by": {"id": 7.0}, "total": 5}}


def test_a_match_and_a_filter_must_both_hold(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")
    wait = op("WaitForEvent", "paid", eventName="pay", timeoutMs=60_000, match={"data.id": 1})
    runner.next().found(wait | {"eventIf": "event.data.total > 5"})
    settled(wire, run_id, "waiting")

    assert emit(wire, "pay", {"id": 1, "total": 5})["woke"] == 0
    assert emit(wire, "pay", {"id": 2, "total": 6})["woke"] == 0
    assert emit(wire, "pay", {"id": 1, "total": 6})["woke"] == 1


def test_null_in_place_of_a_match_is_none(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")
    wait = op("WaitForEvent", "paid", eventName="pay", timeoutMs=60_000)
    runner.next().found(wait | {"match": None, "eventIf": None})
    settled(wire, run_id, "waiting")
    assert emit(wire, "pay")["woke"] == 1


@pytest.mark.parametrize("match", [{}, {"id": 1}, {"data.id": [1]}, "data.id", 7])
def test_a_match_that_makes_no_sense_fails_the_run(wire: Wire, match: Any) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")
    wait = op("WaitForEvent", "paid", eventName="pay", timeoutMs=60_000)
    runner.next().found(wait | {"match": match})
    settled(wire, run_id, "failed")
    assert "the match of step paid" in show(wire, run_id)["error"]["message"]


def test_an_event_that_many_wait_for_says_that_it_continues(wire: Wire) -> None:
    waits = WAITERS_PER_PAGE_MAX + 1

    async def begin() -> None:
        await wire.server.engine.submit(Begin(*[Begun([a_wait("pay")])] * waits))

    wire.run(begin())

    told = emit(wire, "pay", dedupeId="once")
    again = emit(wire, "pay", dedupeId="once")

    assert (told["woke"], told["continues"]) == (WAITERS_PER_PAGE_MAX, True)
    assert (again["deduped"], again["woke"], "continues" in again) == (True, 0, False)

    async def over() -> Json:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                shown = (await wire.send("GET", f"/events/{told['eventId']}")).body
                if "continues" not in shown:
                    return shown

    assert wire.run(over())["woke"] == waits


def test_an_event_for_an_app_wakes_only_runs_of_that_app(wire: Wire) -> None:
    shop = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")
    shop.next().found(op("WaitForEvent", "paid", eventName="pay", timeoutMs=60_000))
    settled(wire, run_id, "waiting")

    assert emit(wire, "pay", app="bank")["woke"] == 0
    assert emit(wire, "pay", targetApp="shop")["woke"] == 1


def test_branches_wait_side_by_side_and_keep_their_timers(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")

    runner.next().found(
        ran("a", 1),
        op("Sleep", "long", sleepMs=10_000),
        op("Sleep", "short", sleepMs=5_000),
        op("WaitForEvent", "paid", eventName="pay", timeoutMs=60_000),
    )
    invoke = runner.next()
    assert invoke.memo("a") == {"data": 1}
    assert invoke.memo("long") == invoke.memo("short") == invoke.memo("paid") == PENDING
    invoke.found(op("Sleep", "long", sleepMs=99_000))
    settled(wire, run_id, "waiting")
    wire.advance(seconds=5.1)
    invoke = runner.next()
    assert (invoke.memo("short"), invoke.memo("long")) == (DONE, PENDING)
    emit(wire, "pay", 7)
    invoke.found()
    invoke = runner.next()
    assert invoke.memo("paid") == {"data": 7}
    invoke.found()
    settled(wire, run_id, "waiting")
    wire.advance(seconds=5)
    invoke = runner.next()
    assert invoke.memo("long") == DONE
    invoke.returned("all")

    assert settled(wire, run_id, "succeeded")["stepCount"] == 4


def test_a_branch_in_backoff_is_not_run_early_by_its_siblings(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order", retry={"maxAttempts": 2, "initialDelayMs": 9_000}))
    run_id = start(wire, "order")

    runner.next().found(ran("a"), broke("b"))
    invoke = runner.next()
    assert (invoke.memo("a"), invoke.memo("b")) == (DONE, PENDING)
    invoke.found(ran("c"))
    invoke = runner.next()
    assert (invoke.memo("c"), invoke.memo("b")) == (DONE, PENDING)
    invoke.found()
    settled(wire, run_id, "waiting")
    wire.advance(seconds=9.1)
    invoke = runner.next()
    assert invoke.memo("b") is None
    invoke.found(ran("b", "at last"))
    runner.next().returned()

    settled(wire, run_id, "succeeded")


def test_the_published_python_runner_is_spared_what_it_cannot_answer(wire: Wire) -> None:
    """It waits for ever when all that its code stands at is pending (contract 4.3)."""
    retry = {"maxAttempts": 2, "initialDelayMs": 9_000}
    runner = a_runner(wire, workflow("order", retry=retry), sdkName="duraton", language="python")
    run_id = start(wire, "order")

    runner.next().found(ran("a"), op("Sleep", "nap", sleepMs=5_000))
    invoke = runner.next()
    assert (invoke.memo("a"), invoke.memo("nap")) == (DONE, None)
    invoke.found(op("Sleep", "nap", sleepMs=5_000))
    settled(wire, run_id, "waiting")
    wire.advance(seconds=5.1)
    runner.next().found(ran("b"), broke("c"))
    settled(wire, run_id, "waiting")
    assert runner.has_nothing()
    wire.advance(seconds=9.1)
    invoke = runner.next()
    assert (invoke.memo("b"), invoke.memo("c")) == (DONE, None)
    invoke.found(ran("c"))
    runner.next().returned()

    settled(wire, run_id, "succeeded")


def test_a_failed_branch_takes_its_siblings_down(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"), workflow("child"))
    run_id = start(wire, "order")

    runner.next().found(
        op("Sleep", "nap", sleepMs=1_000),
        op("WaitForEvent", "paid", eventName="pay", timeoutMs=60_000),
        op("RunWorkflow", "kid", childName="child"),
    )
    child = runner.next()
    assert child.context["workflow"] == "child"
    settled(wire, run_id, "waiting")
    wire.advance(seconds=1.1)
    runner.next().found(broke("pay", "no"))

    settled(wire, run_id, "failed")
    assert [row["status"] for row in steps(wire, run_id)] == [
        "succeeded",
        "cancelled",
        "cancelled",
        "failed",
    ]
    settled(wire, child.run_id, "cancelled")
    child.returned("too late")
    assert emit(wire, "pay")["woke"] == 0
    assert settled(wire, child.run_id, "cancelled").get("result") is None


def test_a_run_may_end_while_steps_are_still_open(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")

    runner.next().found(ran("a"), op("Sleep", "nap", sleepMs=1_000))
    runner.next().returned("early")

    settled(wire, run_id, "succeeded")
    assert [row["status"] for row in steps(wire, run_id)] == ["succeeded", "cancelled"]
    wire.advance(seconds=2)
    assert runner.has_nothing()


def test_a_child_gives_its_caller_its_result(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"), workflow("child"))
    run_id = start(wire, "order", session="s1", tags={"k": "v"})

    runner.next().found(op("RunWorkflow", "kid", childName="child", childData={"n": 1}))
    child = runner.next()
    assert child.body["event"] == {"name": "child", "data": {"n": 1}}
    told = show(wire, child.run_id)
    assert (told["parentRunId"], told["triggerKind"]) == (run_id, "event")
    assert (told["session"], told["tags"]) == ("s1", {"k": "v"})
    child.returned({"n": 2})
    invoke = runner.next()
    assert invoke.memo("kid") == {"data": {"n": 2}}
    invoke.returned()

    settled(wire, run_id, "succeeded")


def test_a_child_that_fails_gives_its_caller_its_error(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"), workflow("child"))
    run_id = start(wire, "order")

    runner.next().found(op("RunWorkflow", "kid", childName="child"))
    runner.next().found(broke("x", "kid failed"))
    invoke = runner.next()
    assert invoke.memo("kid") == {"error": {"message": "kid failed"}}
    invoke.found(op("RunWorkflow", "nobody", childName="nobody"))
    invoke = runner.next()
    error = invoke.memo("nobody")
    assert error is not None
    assert "nobody" in error["error"]["message"]
    invoke.returned("caught")

    settled(wire, run_id, "succeeded")
    assert [row["status"] for row in steps(wire, run_id)] == ["failed", "failed"]


def test_a_child_of_another_app_is_called_by_its_name(wire: Wire) -> None:
    shop = a_runner(wire, workflow("order"), workflow("pay"))
    bank = a_runner(wire, workflow("pay"), workflow("audit"), app="bank")
    start(wire, "order")

    shop.next().found(
        op("RunWorkflow", "own", childName="pay"),
        op("RunWorkflow", "named", childName="pay", childApp="bank"),
        op("RunWorkflow", "any", childName="audit"),
    )

    assert shop.next().context["workflow"] == "pay"
    called = {bank.next().context["workflow"] for _ in range(2)}
    assert called == {"pay", "audit"}


def test_an_emitted_event_does_what_one_from_outside_does(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"), workflow("mail"))
    waiting = start(wire, "order")
    runner.next().found(op("WaitForEvent", "w", eventName="mail", timeoutMs=60_000))
    settled(wire, waiting, "waiting")
    sending = start(wire, "order")

    runner.next().found(op("Emit", "send", eventName="mail", data={"to": "you"}, dedupeId="d1"))

    by_run = {invoke.run_id: invoke for invoke in (runner.next() for _ in range(3))}
    assert by_run[waiting].memo("w") == {"data": {"to": "you"}}
    assert by_run[sending].memo("send") == DONE
    (mail,) = by_run.keys() - {waiting, sending}
    assert by_run[mail].body["event"] == {"name": "mail", "data": {"to": "you"}}
    by_run[sending].found(op("Emit", "again", eventName="mail", dedupeId="d1"))
    runner.next().returned()
    settled(wire, sending, "succeeded")
    emitted = [row for row in rows(wire, "/events?name=mail") if row["source"] == "emit"]
    assert len(emitted) == 1
    assert (emitted[0]["app"], emitted[0]["woke"]) == ("shop", 1)


def test_the_failure_of_a_run_is_told_to_its_handler_in_a_run_of_its_own(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order", onFailure=True))
    run_id = start(wire, "order", {"n": 1})

    runner.next().found(broke("charge", "card declined"))
    handler = runner.next()

    assert handler.context["onFailure"] is True
    assert handler.context["error"] == {"message": "card declined"}
    assert handler.body["event"] == {"name": "order", "data": {"n": 1}}
    assert handler.body["steps"] == {}
    settled(wire, run_id, "failed")
    handler.found(broke("cleanup", "that failed too"))
    told = settled(wire, handler.run_id, "failed")
    assert told["failureOf"] == run_id
    assert runner.has_nothing()


def test_calls_cannot_be_nested_without_end(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    start(wire, "order")

    for _ in range(33):
        runner.next().found(op("RunWorkflow", "kid", childName="order"))
    error = runner.next().memo("kid")

    assert error is not None
    assert "32" in error["error"]["message"]


def test_a_step_may_be_skipped(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")

    runner.next().found(op("Skip", "gift", data="no gift wanted"))
    invoke = runner.next()
    assert invoke.memo("gift") == DONE
    invoke.returned()

    settled(wire, run_id, "succeeded")
    assert steps(wire, run_id)[0]["status"] == "skipped"


def ended(invoke: Invoke, *opcodes: Json) -> None:
    """The code has come to its end beside these steps."""
    invoke.answer(206, {"opcodes": list(opcodes), "logs": [], "ended": True})


def test_what_a_handler_does_not_await_is_cancelled_when_it_has_ended(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"), workflow("child"))
    run_id = start(wire, "order")
    ended(
        runner.next(),
        op("Sleep", "nap", sleepMs=3_600_000),
        op("WaitForEvent", "paid", eventName="pay", timeoutMs=3_600_000),
        op("Approval", "ok", tool="refund"),
        op("RunWorkflow", "kid", childName="child"),
    )

    passes = {invoke.context["workflow"]: invoke for invoke in (runner.next(), runner.next())}
    for name in ("nap", "paid", "ok", "kid"):
        assert passes["order"].memo(name) == PENDING
    passes["order"].returned("done")

    assert settled(wire, run_id, "succeeded")["result"] == "done"
    told = {step["name"]: step["status"] for step in steps(wire, run_id)}
    assert told == dict.fromkeys(("nap", "paid", "ok", "kid"), "cancelled")
    assert emit(wire, "pay")["woke"] == 0
    assert rows(wire, "/approvals")[0]["status"] == "cancelled"
    settled(wire, passes["child"].run_id, "cancelled")


def test_the_end_of_a_handler_is_asked_for_after_a_pause(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")
    invoke = runner.next()
    wire.call("POST", f"/runs/{run_id}/pause").ok(200)
    ended(invoke, op("Sleep", "nap", sleepMs=3_600_000))
    settled(wire, run_id, "paused")
    wire.call("POST", f"/runs/{run_id}/resume").ok(200)
    runner.next().returned()
    settled(wire, run_id, "succeeded")


def test_work_that_is_tried_again_keeps_a_run_open_although_its_code_has_ended(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")
    policy = {"maxAttempts": 2, "backoff": "fixed", "initialDelayMs": 10_000}
    ended(runner.next(), broke("a", retry=policy), op("Sleep", "nap", sleepMs=3_600_000))
    settled(wire, run_id, "waiting")
    wire.advance(seconds=10.1)
    runner.next().found(ran("a", 1))
    runner.next().returned()
    settled(wire, run_id, "succeeded")


def test_a_runner_that_says_so_without_a_new_step_is_not_asked_again_at_once(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")
    nap = op("Sleep", "nap", sleepMs=3_600_000)
    ended(runner.next(), nap)
    ended(runner.next(), nap)
    settled(wire, run_id, "waiting")
    assert runner.has_nothing()


def test_a_condition_that_fails_is_told_with_the_event(wire: Wire) -> None:
    trigger = {"event": "pay", "if": "event.data.total > 100"}
    runner = a_runner(wire, workflow("order"), workflow("big", triggers=[trigger]))
    run_id = start(wire, "order")
    wanted = "event.data.total.matches('^1')"
    runner.next().found(op("WaitForEvent", "paid", eventName="pay", eventIf=wanted))
    settled(wire, run_id, "waiting")

    told = emit(wire, "pay", {"amount": 5})
    assert (told["woke"], told["triggered"]) == (0, [])
    event = wire.call("GET", f"/events/{told['eventId']}").ok()
    first, second = event["failedConditions"]
    assert first.pop("reason") == second.pop("reason") != ""
    assert first == {"workflow": "big", "app": "shop", "condition": "event.data.total > 100"}
    asked = {"workflow": "order", "app": "shop", "condition": wanted}
    assert second == {**asked, "runId": run_id, "step": "paid"}
    assert event["failedConditionCount"] == 2

    told = emit(wire, "pay", {"total": "150"})
    event = wire.call("GET", f"/events/{told['eventId']}").ok()
    assert told["woke"] == 1
    assert [one["workflow"] for one in event["failedConditions"]] == ["big"]
    assert "No matching overloads" in event["failedConditions"][0]["reason"]
    runner.next().returned()

    told = emit(wire, "other", {"total": 1})
    assert "failedConditions" not in wire.call("GET", f"/events/{told['eventId']}").ok()
