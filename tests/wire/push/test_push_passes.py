"""Passes: what a runner is told, and what its answers make of a run."""

import json
from typing import Any

import pytest

from tests.support.http import Json, Wire
from tests.support.runner import (
    a_runner,
    broke,
    op,
    ran,
    settled,
    show,
    start,
    step_id,
    steps,
    workflow,
)


def test_a_step_is_run_once_and_told_in_every_later_pass(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"), runner="r1")
    run_id = start(wire, "order", {"n": 1})

    first = runner.next()
    assert first.body["event"] == {"name": "order", "data": {"n": 1}}
    assert first.body["steps"] == {}
    assert first.context | {"traceparent": ""} == {
        "runId": run_id,
        "workflow": "order",
        "attempt": 1,
        "app": "shop",
        "runner": "",
        "passTimeoutMs": 300_000,
        "traceparent": "",
    }
    first.found(ran("charge", {"id": "ch_1"}, input={"amount": 5}))
    second = runner.next()
    assert second.body["steps"] == {step_id("charge"): {"data": {"id": "ch_1"}}}
    second.found(ran("ship"))
    third = runner.next()
    assert third.memo("ship") == {"data": None}
    third.returned({"done": True})

    run = settled(wire, run_id, "succeeded")
    assert run["result"] == {"done": True}
    assert run["input"] == {"n": 1}
    assert (run["stepCount"], run["errorCount"], run["attempt"]) == (2, 0, 1)
    assert run["executedBy"] == "r1"
    charge, ship = steps(wire, run_id)
    assert (charge["name"], charge["status"], charge["output"]) == (
        "charge",
        "succeeded",
        {"id": "ch_1"},
    )
    assert charge["input"] == {"amount": 5}
    assert (ship["index"], ship["attempt"], ship["output"]) == (1, 1, None)


def test_a_result_of_nothing_is_null_and_not_absent(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")

    runner.next().returned()

    assert settled(wire, run_id, "succeeded")["result"] is None


def test_a_failing_step_is_tried_again_when_its_time_has_come(wire: Wire) -> None:
    retry = {"maxAttempts": 3, "backoff": "exponential", "initialDelayMs": 1000}
    runner = a_runner(wire, workflow("order", retry=retry))
    run_id = start(wire, "order")

    runner.next().found(broke("charge", "card declined"))
    run = settled(wire, run_id, "waiting")
    (step,) = steps(wire, run_id)
    assert (step["status"], step["willRetry"], step["attempt"]) == ("waiting", True, 1)
    assert step["error"] == {"message": "card declined"}
    assert run["errorCount"] == 1
    wire.advance(seconds=0.9)
    assert runner.has_nothing()
    wire.advance(seconds=0.2)
    again = runner.next()
    assert again.memo("charge") is None
    assert again.context["attempt"] == 2
    again.found(broke("charge", "again"))
    settled(wire, run_id, "waiting")
    wire.advance(seconds=2.1)
    runner.next().found(ran("charge", 3))
    runner.next().returned("paid")

    run = settled(wire, run_id, "succeeded")
    assert (run["attempt"], run["errorCount"]) == (3, 2)
    (step,) = steps(wire, run_id)
    assert (step["status"], step["attempt"], step["output"]) == ("succeeded", 3, 3)
    assert "error" not in step
    assert "willRetry" not in step


@pytest.mark.parametrize(
    ("retry", "failure"),
    [
        (None, {}),
        ({"maxAttempts": 5}, {"retriable": False}),
    ],
    ids=["one-try", "never-again"],
)
def test_the_last_failure_of_a_step_fails_the_run(
    wire: Wire, retry: Json | None, failure: Json
) -> None:
    members = {} if retry is None else {"retry": retry}
    runner = a_runner(wire, workflow("order", **members))
    run_id = start(wire, "order")

    runner.next().found(broke("charge", "card declined", **failure))

    run = settled(wire, run_id, "failed")
    assert run["error"] == {"message": "card declined"}
    assert steps(wire, run_id)[0]["status"] == "failed"
    assert runner.has_nothing()


def test_a_runner_may_say_when_to_try_again(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order", retry={"maxAttempts": 2, "initialDelayMs": 1}))
    run_id = start(wire, "order")

    runner.next().found(broke("charge", retryAfterMs=60_000))
    settled(wire, run_id, "waiting")
    wire.advance(seconds=59)
    assert runner.has_nothing()
    wire.advance(seconds=2)
    runner.next().found(broke("charge", retryAfterMs=60_000))

    assert settled(wire, run_id, "failed")["attempt"] == 2


def test_the_policy_beside_a_step_counts_before_that_of_the_workflow(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")

    runner.next().found(broke("charge", retry={"maxAttempts": 2, "initialDelayMs": 5000}))
    settled(wire, run_id, "waiting")
    wire.advance(seconds=5.1)
    runner.next().found(broke("charge"))

    settled(wire, run_id, "failed")


def test_four_hundreds_fail_the_run_at_once(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")

    runner.next().answer(400, {"error": "unknown workflow: order"})

    assert settled(wire, run_id, "failed")["error"]["message"] == "unknown workflow: order"


def test_five_hundreds_are_tried_on_a_budget_of_their_own(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order", retry={"maxAttempts": 9}))
    run_id = start(wire, "order")

    for number, delay in enumerate((0.25, 0.5, 1, 2, None), start=1):
        runner.next().answer(500, {"error": f"boom {number}"})
        if delay is not None:
            settled(wire, run_id, "running", errorCount=number)
            wire.advance(seconds=delay + 0.01)

    run = settled(wire, run_id, "failed")
    assert run["error"]["message"] == "boom 5"
    assert (run["errorCount"], run["attempt"]) == (5, 1)


def test_a_good_pass_makes_the_budget_whole_again(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")

    for number in range(3):
        for broken in range(4):
            runner.next().answer(502, {})
            settled(wire, run_id, "running", errorCount=4 * number + broken + 1)
            wire.advance(seconds=3)
        runner.next().found(ran(f"step {number}"))
    runner.next().returned()

    assert settled(wire, run_id, "succeeded")["errorCount"] == 12


@pytest.mark.parametrize(
    "answer",
    [
        (206, {"logs": []}),
        (200, []),
        (206, {"opcodes": "many"}),
        (302, {"data": 1}),
        ("ok", {}),
    ],
)
def test_an_answer_that_makes_no_sense_is_a_pass_that_broke(wire: Wire, answer: Any) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")

    runner.next().answer(*answer)

    settled(wire, run_id, "running", errorCount=1)
    wire.advance(seconds=1)
    runner.next().returned()
    settled(wire, run_id, "succeeded")


@pytest.mark.parametrize(
    "opcode",
    [
        op("Dance", "x"),
        op("Sleep", "x"),
        op("SleepUntil", "x"),
        op("WaitForEvent", "x"),
        op("WaitForEvent", "x", eventName="pay", eventIf="event.data ==="),
        op("RunWorkflow", "x"),
        op("Emit", "x", eventName=" "),
        op("Emit", "x", eventName="duraton/run.finished"),
        {"op": "StepRun", "id": "", "name": "x"},
        {"op": "StepRun", "name": "x"},
        op("StepRun", "x", error={"why": "none"}),
    ],
)
def test_an_opcode_that_nobody_can_follow_fails_the_run_and_says_why(
    wire: Wire, opcode: Json
) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")

    runner.next().found(ran("before"), opcode)

    run = settled(wire, run_id, "failed")
    assert run["error"]["message"]
    assert run["stepCount"] == 0


def test_of_two_words_about_one_step_the_first_counts(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")

    runner.next().found(ran("x", 1), ran("x", 2))
    invoke = runner.next()
    assert invoke.memo("x") == {"data": 1}
    invoke.found(ran("x", 3), ran("y"))
    invoke = runner.next()
    assert invoke.memo("x") == {"data": 1}
    invoke.returned()

    assert settled(wire, run_id, "succeeded")["stepCount"] == 2


def test_a_pass_that_neither_ends_nor_waits_fails_the_run(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")

    runner.next().found()

    message = settled(wire, run_id, "failed")["error"]["message"]
    assert message == "the runner returned no result and no step to wait for"


def test_a_memo_that_does_not_fit_fails_the_run_instead_of_the_socket(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")

    runner.next().found(ran("a", "x" * 600_000))
    runner.next().found(ran("b", "x" * 600_000))

    assert "1048576" in settled(wire, run_id, "failed")["error"]["message"]
    other = start(wire, "order")
    runner.next().returned()
    settled(wire, other, "succeeded")


def test_log_lines_are_kept_once_and_without_secrets(wire: Wire) -> None:
    def line(scope: str, index: int, message: str, **fields: Any) -> Json:
        told: Json = {"level": "info", "message": message, "scope": scope, "index": index}
        return told | ({"fields": fields} if fields else {})

    runner = a_runner(wire, workflow("order", retry={"maxAttempts": 2, "initialDelayMs": 1}))
    run_id = start(wire, "order")

    root = line("@root", 0, "start", user="u1", api_key="k", nested={"Password": "p", "n": 1})
    runner.next().found(broke("f"), logs=[root, line("f", 0, "try"), {"level": "loud"}])
    settled(wire, run_id, "waiting")
    wire.advance(seconds=1)
    runner.next().found(ran("f"), logs=[root, line("f", 0, "try")])
    runner.next().returned(logs=[root, line("@root", 1, "end")])
    settled(wire, run_id, "succeeded")

    logs = json.loads(wire.call("GET", f"/runs/{run_id}/logs").content)
    assert [(row["scope"], row["message"], row["attempt"]) for row in logs] == [
        ("@root", "start", 1),
        ("f", "try", 1),
        ("@root", "start", 2),
        ("f", "try", 2),
        ("@root", "end", 2),
    ]
    redacted = "[REDACTED]"
    assert logs[0]["fields"] == {
        "user": "u1",
        "api_key": redacted,
        "nested": {"Password": redacted, "n": 1},
    }
    seqs = [row["seq"] for row in logs]
    assert seqs == sorted(set(seqs))
    rest = json.loads(wire.call("GET", f"/runs/{run_id}/logs?from={seqs[2]}&limit=1").content)
    assert [row["seq"] for row in rest] == [seqs[3]]


def test_text_and_payloads_come_through_as_they_were(wire: Wire) -> None:
    data = {"ü": ["\u0000", "\U0001f600", 1e300, 12345678901234567890, None, {"": []}]}
    runner = a_runner(wire, workflow("grün/é"))
    run_id = start(wire, "grün/é", data)

    invoke = runner.next()
    assert invoke.body["event"]["data"] == data
    invoke.found(ran("schön", data))
    invoke = runner.next()
    assert invoke.memo("schön") == {"data": data}
    invoke.returned(data)

    assert settled(wire, run_id, "succeeded")["result"] == data
    assert show(wire, run_id)["input"] == data
    assert steps(wire, run_id)[0]["output"] == data
