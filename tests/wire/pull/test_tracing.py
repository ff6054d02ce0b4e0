"""Traces travel with runs: carried to every task, bounded, and never a reason for anything."""

from typing import Any

import pytest

from tests.support.http import (
    Json,
    Wire,
    complete_update,
    complete_workflow,
    continue_as_new,
    schedule_activity,
    start_child,
    wait_for_condition,
)


def carrier(number: int = 1, **headers: str) -> Json:
    traceparent = f"00-{number:032x}-{number:016x}-01"
    return {
        "schema": "durable-workflow.trace-context",
        "version": 1,
        "carrier": {"traceparent": traceparent, **headers},
    }


def test_the_trace_of_a_start_reaches_every_task_of_the_run(wire: Wire) -> None:
    wire.register()
    trace = carrier(7, tracestate="a=b", baggage="user=ada")
    wire.start(observability_context=trace)
    task = wire.take()
    assert task["observability_context"] == trace
    assert "observability_links" not in task
    wire.complete(task, schedule_activity())
    attempt = wire.take("activity")
    assert attempt["observability_context"] == trace
    wire.restart()
    wire.report_attempt(attempt, "complete").ok()
    assert wire.take()["observability_context"] == trace


def test_a_run_without_a_trace_says_nothing_of_one(wire: Wire) -> None:
    wire.register()
    wire.start(observability_context=None)
    task = wire.take()
    assert not [name for name in task if "observability" in name]
    wire.complete(task, schedule_activity())
    assert "observability_context" not in wire.take("activity")


def test_children_and_successors_go_on_in_the_trace_of_the_run_or_in_their_own(wire: Wire) -> None:
    wire.register()
    wire.start(observability_context=carrier(1))
    wire.complete(
        wire.take(),
        start_child(observability_context=carrier(2)),
        start_child(),
    )
    traces = [wire.take()["observability_context"] for _ in range(2)]
    assert carrier(1) in traces
    assert carrier(2) in traces

    wire.start("chain", observability_context=carrier(3))
    wire.complete(wire.take(), continue_as_new())
    task = wire.take()
    assert task["observability_context"] == carrier(3)
    wire.complete(task, {**continue_as_new(), "observability_context": carrier(4)})
    assert wire.take()["observability_context"] == carrier(4)


def test_the_trace_of_a_signal_or_an_update_is_a_link_of_the_task_it_leads_to(wire: Wire) -> None:
    wire.register()
    wire.run_to(wait_for_condition(), observability_context=carrier(1))
    sent = wire.signal("pay", observability_context=carrier(2, baggage="user=ada"))
    task = wire.take()
    assert task["observability_context"] == carrier(1)
    assert task["observability_links"] == {
        "schema": "durable-workflow.trace-links",
        "version": 1,
        "task_id": task["task_id"],
        "run_id": task["run_id"],
        "namespace": "default",
        "links": [{"kind": "command", "command_id": sent["command_id"], "context": carrier(2)}],
    }
    wire.complete(task, wait_for_condition())

    told = wire.update(observability_context=carrier(3)).ok(202)
    task = wire.take()
    (link,) = task["observability_links"]["links"]
    assert (link["command_id"], link["context"]) == (told["command_id"], carrier(3))
    wire.complete(task, complete_update(task))
    assert "observability_links" not in wire.take(), "each is told once"


def test_only_as_many_links_are_told_as_fit(wire: Wire) -> None:
    wire.register()
    wire.run_to(schedule_activity())
    for number in range(1, 41):
        wire.signal("pay", observability_context=carrier(number))
    wire.report_attempt(wire.take("activity"), "complete").ok()

    links = wire.take()["observability_links"]["links"]

    assert 5 < len(links) <= 32
    assert links[-1]["context"] == carrier(40), "the newest ones"


LONG = "é" * 300


@pytest.mark.parametrize(
    "context",
    [
        "00-1-1-01",
        {},
        {**carrier(), "schema": "another"},
        {**carrier(), "version": 2},
        {**carrier(), "version": True},
        {**carrier(), "more": 1},
        {**carrier(), "carrier": {}},
        {**carrier(), "carrier": {"tracestate": "a=b"}},
        carrier(more="x"),
        carrier(traceparent=7),  # type: ignore[arg-type]  # on purpose
        carrier(traceparent="x" * 257),
        carrier(tracestate=LONG),
        carrier(baggage="x" * 2049),
        carrier(baggage="/" * 2048),
    ],
)
def test_a_carrier_that_breaks_its_bounds_is_refused(wire: Wire, context: Any) -> None:
    wire.start("known")
    members = {"observability_context": context}
    body = {"workflow_id": "new", "workflow_type": "Order", "task_queue": "q", **members}
    with wire.nothing_changes():
        for path, sent in (
            ("/workflows", body),
            ("/workflows/known/signal/pay", members),
            ("/workflows/known/update/add", members),
            ("/workflows/known/cancel", members),
        ):
            told = wire.control("POST", path, sent).refused(422, "validation_failed")
            assert next(iter(told["errors"])).startswith("observability_context")


def test_a_command_with_a_broken_carrier_is_refused(wire: Wire) -> None:
    wire.register()
    wire.start()
    task = wire.take()
    command = start_child(observability_context={"schema": "x"})
    with wire.nothing_changes():
        answer = wire.report(task, "complete", commands=[command, complete_workflow()])
        answer.invalid("commands.0.observability_context")
