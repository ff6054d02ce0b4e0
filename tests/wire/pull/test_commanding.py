"""Signals, cancel and terminate."""

from typing import Any

import pytest

from tests.support.http import (
    Answer,
    Json,
    Wire,
    avro,
    complete_workflow,
    continue_as_new,
    contract_of,
    fail_workflow,
    schedule_activity,
    start_child,
    start_timer,
    unavro,
    wait_for_condition,
)

STOPS = [("cancel", "cancelled"), ("terminate", "terminated")]


def command(wire: Wire, path: str, **members: Any) -> Answer:
    return wire.control("POST", f"/workflows/{path}", members)


# Signals ------------------------------------------------------------------------------------------


def test_a_signal_is_202_and_says_what_became_of_it(wire: Wire) -> None:
    started = wire.start()

    body = wire.signal("pay", input=[1], request_id="r1")

    expected = {
        "outcome": "signal_received",
        "signal_name": "pay",
        "workflow_id": "order-1",
        "run_id": started["run_id"],
        "requested_run_id": None,
        "resolved_run_id": started["run_id"],
        "workflow_type": "Order",
        "command_status": "accepted",
        "command_source": "control_plane",
        "target_scope": "instance",
        "retained": False,
    }
    assert expected.items() <= body.items()
    assert body["command_id"]
    block = body["control_plane"]
    assert (block["operation"], block["operation_name"]) == ("signal", "pay")
    assert block["operation_name_field"] == "signal_name"
    assert block["contract"] == {
        "schema": "durable-workflow.v2.control-plane-response.contract",
        "version": 1,
        "legacy_field_policy": "reject_non_canonical",
        "legacy_fields": {
            "query": "query_name",
            "signal": "signal_name",
            "update": "update_name",
            "wait_policy": "wait_for",
        },
        "required_fields": ["workflow_id", "operation_name", "operation_name_field"],
        "success_fields": ["outcome"],
    }


def test_a_signal_before_the_first_poll_enters_history_behind_the_first_task(wire: Wire) -> None:
    wire.register()
    wire.start()
    wire.signal("pay", input=[5])

    task = wire.take()
    assert [e["event_type"] for e in task["history_events"]] == ["StartAccepted", "WorkflowStarted"]
    wire.complete(task, wait_for_condition())

    assert wire.event_types()[2:] == ["ConditionWaitOpened", "SignalReceived"]
    again = wire.take()
    received = again["history_events"][-1]["payload"]
    assert received["signal_name"] == "pay"
    assert unavro(received["arguments"]) == [5]


@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        ({}, None),
        ({"input": None}, None),
        ({"input": [1, "a"]}, [1, "a"]),
        ({"input": {"amount": 3}}, [3]),
        ({"input": avro(["x"])}, ["x"]),
    ],
    ids=["absent", "null", "list", "object", "envelope"],
)
def test_the_arguments_of_a_signal_are_plain_json_or_an_envelope(
    wire: Wire, given: Json, arguments: list[Any] | None
) -> None:
    wire.register()
    wire.run_to(wait_for_condition())

    wire.signal("pay", **given)

    payload = wire.events()[-1]["payload"]
    if arguments is None:
        assert "arguments" not in payload
    else:
        assert unavro(payload["arguments"]) == arguments


def test_signals_wake_a_waiting_run_one_at_a_time(wire: Wire) -> None:
    wire.register()
    wire.run_to(wait_for_condition())
    for number in (1, 2, 3):
        wire.signal("pay", input=[number])

    for number in (1, 2, 3):
        task = wire.take()
        received = [e for e in task["history_events"] if e["event_type"] == "SignalReceived"]
        assert len(received) == number
        wire.complete(task, wait_for_condition())

    assert wire.poll()["poll_status"] == "empty"


def test_a_signal_that_the_close_rejects_is_told_everywhere(wire: Wire) -> None:
    """In history, in describe, and to whoever repeats it, also after a restart."""
    wire.register()
    wire.start()
    task = wire.take()
    sent = wire.signal("pay", input=[1], request_id="r1")
    assert wire.describe()["rejected_signals"] is None
    wire.complete(task, complete_workflow())

    for _ in range(2):
        assert wire.event_types()[-2:] == ["SignalRejected", "WorkflowCompleted"]
        payload = wire.events()[-2]["payload"]
        assert payload["signal_name"] == "pay"
        assert unavro(payload["arguments"]) == [1]
        rejected = wire.describe()["rejected_signals"]
        assert rejected["count"] == 1
        (signal,) = rejected["signals"]
        assert (signal["command_id"], signal["signal_name"]) == (sent["command_id"], "pay")
        path = "order-1/signal/pay"
        refused = command(wire, path, input=[1], request_id="r1").refused(409, "run_not_active")
        assert refused["command_id"] == sent["command_id"]
        assert refused["control_plane"]["operation"] == "signal"
        wire.restart()


def test_code_may_get_one_more_task_for_signals_that_wait_at_its_close(wire: Wire) -> None:
    wire.register()
    wire.run_to(wait_for_condition(), late_signal_tasks=1)
    wire.signal("pay", input=[1])
    task = wire.take()
    wire.signal("pay", input=[2])

    held = wire.complete(task, complete_workflow())

    assert held["outcome"] == "completed"
    assert (held["close_held_back"], held["late_signals"]) == (True, 1)
    assert held["run_status"] == "waiting"
    wire.restart()
    wire.register()
    task = wire.take()
    received = [e for e in task["history_events"] if e["event_type"] == "SignalReceived"]
    assert [unavro(e["payload"]["arguments"]) for e in received] == [[1], [2]]
    wire.complete(task, complete_workflow())
    assert wire.describe()["status"] == "completed"
    assert wire.describe()["rejected_signals"] is None


def test_a_task_may_carry_several_signals_to_a_condition(wire: Wire) -> None:
    wire.register()
    wire.run_to(wait_for_condition(), signals_per_task=3)
    for number in (1, 2, 3, 4):
        wire.signal("pay", input=[number])

    task = wire.take()

    received = [e for e in task["history_events"] if e["event_type"] == "SignalReceived"]
    assert len(received) == 3
    wire.complete(task, wait_for_condition())
    assert wire.event_types()[-3:] == ["TimerCancelled", "ConditionWaitOpened", "SignalReceived"]


@pytest.mark.parametrize(
    "members", [{"late_signal_tasks": -1}, {"late_signal_tasks": 1001}, {"signals_per_task": 0}]
)
def test_what_a_start_says_about_signals_has_bounds(wire: Wire, members: Json) -> None:
    (name,) = members
    wire.control("POST", "/workflows", {"workflow_type": "Order", **members}).invalid(name)


def test_a_repeated_request_id_gets_the_answer_that_was_given(wire: Wire) -> None:
    wire.register()
    wire.run_to(wait_for_condition())
    first = wire.signal("pay", input=[1], request_id="r1")

    with wire.nothing_changes():
        again = wire.signal("pay", input=[1], request_id="r1")

    assert again["retained"] is True
    assert (again["command_id"], again["run_id"]) == (first["command_id"], first["run_id"])
    assert again["outcome"] == "signal_received"
    assert wire.event_types().count("SignalReceived") == 1


def test_a_repeated_request_id_is_remembered_over_a_restart_and_a_closed_run(wire: Wire) -> None:
    wire.register()
    wire.run_to(wait_for_condition())
    first = wire.signal("pay", request_id="r1")
    command(wire, "order-1/cancel").ok()
    wire.restart()

    again = wire.signal("pay", request_id="r1")

    assert (again["retained"], again["command_id"]) == (True, first["command_id"])


@pytest.mark.parametrize(
    ("name", "given"),
    [("pay", {"input": [2]}), ("pay", {}), ("pay", {"input": avro([1])}), ("cancel", {})],
)
def test_a_request_id_that_was_used_for_something_else_is_refused(
    wire: Wire, name: str, given: Json
) -> None:
    wire.start()
    first = wire.signal("pay", input=[1], request_id="r1")

    with wire.nothing_changes():
        answer = command(wire, f"order-1/signal/{name}", request_id="r1", **given)

    body = answer.refused(409, "request_id_conflict")
    assert body["request_id"] == "r1"
    assert body["retained_command_id"] == first["command_id"]
    assert (body["retained_command_type"], body["retained_outcome"]) == (
        "signal",
        "signal_received",
    )
    assert body["conflict"]
    assert body["control_plane"]["operation"] == "signal"


def test_a_request_id_belongs_to_the_run_that_it_was_pinned_to(wire: Wire) -> None:
    wire.register()
    old = wire.start()["run_id"]
    first = command(wire, f"order-1/runs/{old}/signal/pay", request_id="r1").ok(202)
    assert (first["request_id"], first["intent_verified"]) == ("r1", True)
    wire.complete(wire.take(), continue_as_new())
    new = wire.describe()["run_id"]

    with wire.nothing_changes():
        again = command(wire, f"order-1/runs/{old}/signal/pay", request_id="r1").ok(202)
        assert (again["run_id"], again["retained"]) == (old, True)
        assert wire.signal("pay", request_id="r1")["command_id"] == first["command_id"]
        other = command(wire, f"order-1/runs/{new}/signal/pay", request_id="r1")
        assert other.refused(409, "request_id_conflict")["conflict"] == ["run_id"]


def test_what_every_live_worker_has_told_is_held_against_a_signal(wire: Wire) -> None:
    wire.register(workflow_command_contracts=contract_of("Order", signals={"pay": 1}))
    wire.run_to(wait_for_condition())

    with wire.nothing_changes():
        body = command(wire, "order-1/signal/ship").refused(404, "unknown_signal")
        assert (body["outcome"], body["rejection_reason"]) == (
            "rejected_unknown_signal",
            "unknown_signal",
        )
        wrongs: list[Json] = [{}, {"input": []}, {"input": [1, 2]}, {"input": avro([1, 2])}]
        for wrong in wrongs:
            body = command(wire, "order-1/signal/pay", **wrong).refused(
                422, "invalid_signal_arguments"
            )
            assert body["errors"] == body["validation_errors"] != {}
    wire.signal("pay", input=[1])
    blob = {"codec": "avro", "blob": "nobody can read this"}
    wire.signal("pay", input=blob)
    wire.signal("pay", input={"codec": "avro", "external_storage": {"uri": "s3://b/k"}})


@pytest.mark.parametrize("other", ["untold", "knows it", "misshapen"])
def test_one_worker_that_may_know_a_signal_is_enough(wire: Wire, other: str) -> None:
    told: dict[str, Json] = {
        "untold": {},
        "knows it": contract_of("Order", signals={"ship": 0}),
        "misshapen": {"Order": {"signals": "ship"}},
    }
    wire.register(workflow_command_contracts=contract_of("Order", signals={"pay": 1}))
    wire.register("w2", workflow_command_contracts=told[other])
    wire.run_to(wait_for_condition())

    wire.signal("ship")


def test_the_word_of_workers_who_are_gone_is_not_held_against_a_signal(wire: Wire) -> None:
    contract = contract_of("Order", signals={"pay": 1})
    wire.register("gone", workflow_command_contracts=contract)
    wire.register("silent", workflow_command_contracts=contract)
    wire.register("elsewhere", workflow_command_contracts=contract, task_queue="other")
    wire.worker("/registrations/gone", method="DELETE").ok()
    wire.start()
    command(wire, "order-1/signal/ship").refused(404, "unknown_signal")

    wire.advance(seconds=61)

    wire.signal("ship")


def test_request_ids_of_other_workflows_are_their_own(wire: Wire) -> None:
    wire.start("a")
    wire.start("b")
    assert wire.signal("pay", "a", request_id="r1")["retained"] is False
    assert wire.signal("other", "b", request_id="r1")["retained"] is False


def test_a_signal_to_nobody_is_404(shared_wire: Wire) -> None:
    with shared_wire.nothing_changes():
        body = command(shared_wire, "nobody/signal/pay").refused(404, "instance_not_found")
    assert body["workflow_id"] == "nobody"
    assert body["control_plane"]["operation"] == "signal"


@pytest.mark.parametrize(
    "ending", [complete_workflow(), fail_workflow()], ids=["completed", "failed"]
)
def test_a_signal_to_a_closed_run_is_refused(wire: Wire, ending: Json) -> None:
    wire.register()
    started = wire.run_to(ending)

    with wire.nothing_changes():
        body = command(wire, "order-1/signal/pay").refused(409, "run_not_active")

    assert (body["workflow_id"], body["run_id"]) == ("order-1", started["run_id"])
    assert body["outcome"] == "rejected_not_active"
    assert body["rejection_reason"] == "run_not_active"
    assert body["control_plane"]["operation"] == "signal"
    assert body["control_plane"]["reason"] == "run_not_active"


@pytest.mark.parametrize("name", ["x" * 257, "%C3%A9" * 129, "a%00b", "a%0Ab", "%7F"])
def test_the_name_of_a_signal_is_checked_before_its_workflow_is_looked_for(
    shared_wire: Wire, name: str
) -> None:
    with shared_wire.nothing_changes():
        command(shared_wire, f"nobody/signal/{name}").invalid("signal_name")


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"request_id": "x" * 256}, "request_id"),
        ({"request_id": 5}, "request_id"),
        ({"input": "text"}, "input"),
        ({"input": {"codec": "json", "blob": "x"}}, "input.codec"),
    ],
)
def test_a_signal_that_makes_no_sense_is_refused(wire: Wire, members: Json, field: str) -> None:
    wire.start()
    with wire.nothing_changes():
        command(wire, "order-1/signal/pay", **members).invalid(field)


# Cancel and terminate -----------------------------------------------------------------------------


@pytest.mark.parametrize(("verb", "status"), STOPS)
def test_a_stop_closes_the_run_at_once_and_lets_its_work_go(
    wire: Wire, verb: str, status: str
) -> None:
    wire.register()
    started = wire.run_to(schedule_activity(), start_timer(60))

    body = command(wire, f"order-1/{verb}", reason="enough").ok()

    assert (body["outcome"], body["run_id"]) == (status, started["run_id"])
    assert (body["retained"], body["reason"]) == (False, "enough")
    assert body["control_plane"]["operation"] == verb
    told = wire.describe()
    assert (told["status"], told["status_bucket"]) == (status, "failed")
    assert told["closed_reason"] == status
    verbs = {"cancel": "Cancel", "terminate": "Terminate"}
    assert wire.event_types()[4:] == [
        f"{verbs[verb]}Requested",
        "ActivityCancelled",
        "TimerCancelled",
        f"Workflow{status.title()}",
    ]
    assert wire.events()[-1]["payload"]["reason"] == "enough"
    assert wire.poll("activity")["poll_status"] == "empty"


@pytest.mark.parametrize(("verb", "status"), STOPS)
def test_a_second_stop_is_refused(wire: Wire, verb: str, status: str) -> None:
    wire.start()
    command(wire, f"order-1/{verb}").ok()

    with wire.nothing_changes():
        for again, _ in STOPS:
            body = command(wire, f"order-1/{again}").refused(409, "run_not_active")
            expected = {
                "outcome": "rejected_not_active",
                "command_status": "rejected",
                "command_source": "control_plane",
                "target_scope": "instance",
            }
            assert expected.items() <= body.items()
            assert {"operation": again, **expected}.items() <= body["control_plane"].items()


@pytest.mark.parametrize(("verb", "status"), STOPS)
def test_a_second_stop_with_the_same_request_id_gets_the_recorded_outcome(
    wire: Wire, verb: str, status: str
) -> None:
    wire.start()
    first = command(wire, f"order-1/{verb}", request_id="r1").ok()

    with wire.nothing_changes():
        again = command(wire, f"order-1/{verb}", request_id="r1").ok()
        command(wire, f"order-1/{verb}", request_id="r2").refused(409, "run_not_active")

    assert (again["outcome"], again["retained"]) == (status, True)
    assert again["command_id"] == first["command_id"]


@pytest.mark.parametrize(("verb", "status"), STOPS)
def test_a_stop_of_nobody_is_404_and_one_without_sense_422(
    wire: Wire, verb: str, status: str
) -> None:
    wire.start()
    with wire.nothing_changes():
        command(wire, f"nobody/{verb}").refused(404, "instance_not_found")
        command(wire, f"order-1/{verb}", reason="x" * 1001).invalid("reason")
        command(wire, f"order-1/{verb}", request_id="x" * 256).invalid("request_id")


def test_a_stop_takes_the_children_along_whose_policy_says_so(wire: Wire) -> None:
    wire.register()
    wire.run_to(
        start_child(parent_close_policy="terminate"),
        start_child(parent_close_policy="request_cancel"),
        start_child(parent_close_policy="abandon"),
        start_child(),
    )

    command(wire, "order-1/terminate").ok()

    children = wire.control("GET", "/workflows?workflow_type=Child").ok()["workflows"]
    assert sorted(child["status"] for child in children) == [
        "cancelled",
        "pending",
        "pending",
        "terminated",
    ]
    assert wire.event_types().count("ParentClosePolicyApplied") == 2
    assert wire.event_types()[-1] == "WorkflowTerminated"


# One run of an id ---------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["signal/pay", "cancel", "terminate"])
def test_a_command_to_a_run_reaches_it_only_while_it_is_the_newest(wire: Wire, verb: str) -> None:
    wire.register()
    old = wire.start()["run_id"]
    wire.complete(wire.take(), continue_as_new())
    new = wire.describe()["run_id"]

    with wire.nothing_changes():
        body = command(wire, f"order-1/runs/{old}/{verb}").refused(
            409, "historical_run_command_rejected"
        )
        assert (body["target_scope"], body["run_id"]) == ("run", old)
        assert (body["command_status"], body["outcome"]) == ("rejected", "rejected_not_current")
        assert verb != "signal/pay" or body["signal_name"] == "pay"
        assert body["current_run_id"] == new
        assert body["control_plane"]["operation"] == verb.partition("/")[0]
        command(wire, f"order-1/runs/nothing/{verb}").refused(404, "run_not_found")
        command(wire, f"nobody/runs/{new}/{verb}").refused(404, "instance_not_found")

    answer = command(wire, f"order-1/runs/{new}/{verb}")
    body = answer.ok(202 if verb.startswith("signal") else 200)
    assert (body["target_scope"], body["requested_run_id"]) == ("run", new)
    assert (body["run_id"], body["resolved_run_id"]) == (new, new)


def test_a_run_of_another_workflow_cannot_be_commanded_by_this_id(wire: Wire) -> None:
    wire.start("a")
    other = wire.start("b")["run_id"]
    with wire.nothing_changes():
        command(wire, f"a/runs/{other}/terminate").refused(404, "run_not_found")
    assert wire.describe("b")["status"] == "pending"


# Walls --------------------------------------------------------------------------------------------


def test_a_namespace_is_a_wall(wire: Wire) -> None:
    other = {"X-Namespace": "other"}
    wire.server.namespaces.known.add("other")
    mine = wire.start("same-id")
    body = {"workflow_id": "same-id", "workflow_type": "Order", "task_queue": "q"}
    theirs = wire.control("POST", "/workflows", body, headers=other).ok(201)
    wire.register()
    task = wire.take()
    wire.complete(task, schedule_activity())
    activity = wire.take("activity")

    assert theirs["run_id"] != mine["run_id"]
    assert [r["run_id"] for r in wire.control("GET", "/workflows").ok()["workflows"]] == [
        mine["run_id"]
    ]
    assert wire.poll()["poll_status"] == "empty", "a worker got the task of another namespace"
    lease = {"lease_owner": "w1", "workflow_task_attempt": 1}
    attempt = {"lease_owner": "w1", "activity_attempt_id": activity["activity_attempt_id"]}
    polled = {"worker_id": "w1", "task_queue": "q", "timeout_seconds": 0}
    task_path = f"/workflow-tasks/{task['task_id']}"
    activity_path = f"/activity-tasks/{activity['task_id']}"
    with wire.nothing_changes():
        wire.control("GET", f"/workflows/same-id/runs/{mine['run_id']}", headers=other).refused(
            404, "run_not_found"
        )
        wire.control(
            "POST", f"/workflows/same-id/runs/{mine['run_id']}/cancel", headers=other
        ).refused(404, "run_not_found")
        wire.worker("/workflow-tasks/poll", polled, headers=other).refused(
            412, "worker_not_registered"
        )
        wire.worker("/registrations/w1", method="DELETE", headers=other).refused(
            404, "worker_not_found"
        )
        for path, report in (
            (f"{task_path}/heartbeat", lease),
            (f"{task_path}/complete", {**lease, "commands": [complete_workflow()]}),
            (f"{task_path}/fail", {**lease, "failure": {"message": "x"}}),
            (f"{task_path}/history", {**lease, "next_history_page_token": "MA=="}),
            (f"{activity_path}/heartbeat", attempt),
            (f"{activity_path}/status", attempt),
            (f"{activity_path}/renew-lease", attempt),
            (f"{activity_path}/complete", attempt),
            (f"{activity_path}/fail", {**attempt, "failure": {"message": "x"}}),
        ):
            wire.worker(path, report, headers=other).refused(404, "task_not_found")
