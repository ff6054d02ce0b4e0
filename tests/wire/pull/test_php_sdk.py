"""The published PHP SDK and the `dw` command line, as they put their requests on the wire.

The requests are vectors in `tests/fixtures/php-sdk`. A PHP worker ends with an uncaught exception
on most errors, so what it sends has to be taken as it is.
"""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from perdure.core.payload import Frame, encode
from perdure.store.interface import QueueKey
from tests.support.http import (
    CONTROL_VERSION,
    WORKER_VERSION,
    Answer,
    Json,
    Parked,
    Wire,
    complete_workflow,
    schedule_activity,
)

VECTORS: dict[str, tuple[str, str, str | None]] = json.loads(
    (Path(__file__).parents[2] / "fixtures" / "php-sdk" / "requests.json").read_text()
)
WORKER_PROTOCOL = "1.13"
WORKER = "php-worker-1"
NOTHING = encode([], Frame.VALUE)


class Php:
    """Sends vectors, with the values of a run in their places."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self._nonces = itertools.count()

    def send(self, name: str, **values: object) -> Answer:
        method, path, content, headers = self._filled(name, values)
        return self.wire.call(method, path, content=content, headers=headers)

    def park(self, name: str) -> Parked:
        """A poll that is left waiting, as long as the SDK asks for."""
        method, path, content, headers = self._filled(name, {"timeout": 5})
        assert content is not None
        return self.wire.call_later(method, path, json.loads(content), headers=headers)

    def look_around(self) -> None:
        """The first round of a worker: it asks for every kind, and there is nothing."""
        for kind in ("a workflow task", "an activity task", "a query task"):
            assert self.send(f"poll for {kind}", timeout=0).ok()["task"] is None

    def take(self, kind: str) -> Json:
        name = {"workflow": "a workflow task", "activity": "an activity task"}[kind]
        answer = self.send(f"poll for {name}", timeout=0).ok()
        assert answer["poll_status"] == "leased", answer
        task: Json = answer["task"]
        return task

    def complete(self, task: Json, *commands: Json) -> Answer:
        text = ",".join(json.dumps(command, separators=(",", ":")) for command in commands)
        return self.send("complete with commands", **task, commands=text)

    def _filled(
        self, name: str, values: dict[str, Any]
    ) -> tuple[str, str, bytes | None, dict[str, str]]:
        method, path, body = VECTORS[name]
        told = {"blob": NOTHING, "nonce": next(self._nonces), **values}
        for key, value in told.items():
            path = path.replace(f"{{{key}}}", str(value))
            body = body and body.replace(f"{{{key}}}", str(value))
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if path.startswith("/worker"):
            headers[WORKER_VERSION] = WORKER_PROTOCOL
        else:
            headers[CONTROL_VERSION] = "2"
        return method, f"/api{path}", None if body is None else body.encode(), headers


@pytest.fixture
def php(wire: Wire) -> Php:
    return Php(wire)


def begun(php: Php, *commands: Json) -> None:
    """A run of a PHP worker that was given these commands."""
    php.send("register a worker").ok(201)
    php.look_around()
    php.send("start").ok(201)
    task = php.take("workflow")
    php.send("renew a workflow task", **task).ok()
    php.complete(task, *commands).ok()


# Empty maps ---------------------------------------------------------------------------------------


def test_a_worker_of_activities_alone_can_start(php: Php) -> None:
    php.send("register an activity worker").ok(201)
    php.send("heartbeat of a worker").ok()
    assert php.send("poll for an activity task", timeout=0).ok()["poll_status"] == "empty"
    php.send("deregister").ok()


def test_a_worker_may_say_nothing_of_itself(php: Php) -> None:
    php.send("register with the command line").ok(201)
    php.send("heartbeat of a worker without figures").ok()
    known = php.wire.control("GET", f"/workers/{WORKER}").ok()
    assert known["task_slots"]["workflow_available"] is None


def test_a_run_has_no_memo_and_no_search_attributes(php: Php) -> None:
    php.send("start").ok(201)
    known = php.wire.describe()
    assert (known["memo"], known["search_attributes"]) == ({}, {})


def test_an_activity_reports_progress_without_details(php: Php) -> None:
    begun(php, schedule_activity(queue="q"))
    task = php.take("activity")
    told = php.send("heartbeat of an activity without details", **task).ok()
    assert told["can_continue"] is True
    php.send("heartbeat of an activity", **task).ok()
    php.send("complete an activity", **task).ok()


def test_nothing_is_upserted_once(php: Php) -> None:
    begun(php, {"type": "upsert_search_attributes", "attributes": []}, complete_workflow())
    assert php.wire.describe()["status"] == "completed"
    upserted = [
        event["payload"]["attributes"]
        for event in php.wire.events()
        if event["event_type"] == "SearchAttributesUpserted"
    ]
    assert upserted == [{}]


def test_an_empty_retry_policy_is_one_attempt(php: Php) -> None:
    begun(php, schedule_activity(queue="q", retry_policy=[]))
    assert php.take("activity")["retry_policy"]["max_attempts"] == 1


def test_a_run_is_cancelled_without_a_word(php: Php) -> None:
    php.send("start").ok(201)
    assert php.send("cancel").ok()["reason"] is None
    closed = php.wire.events()[-1]
    assert closed["event_type"] == "WorkflowCancelled"
    # The SDKs have words of their own where there is no reason; an empty one would be shown.
    assert "reason" not in closed["payload"]
    assert closed["payload"]["message"] == "Workflow cancelled."


def test_a_run_is_terminated_without_a_word(php: Php) -> None:
    php.send("start").ok(201)
    php.send("terminate").ok()
    closed = php.wire.events()[-1]
    assert closed["event_type"] == "WorkflowTerminated"
    assert "reason" not in closed["payload"]


@pytest.mark.parametrize("verb", ["cancel", "terminate"])
def test_a_reason_of_no_words_is_none(php: Php, verb: str) -> None:
    php.send("start").ok(201)
    answer = php.wire.control("POST", f"/workflows/order-1/{verb}", {"reason": ""}).ok()
    assert answer["reason"] is None
    assert [event["payload"].get("reason") for event in php.wire.events()[-2:]] == [None, None]


def test_a_run_is_asked_without_arguments(php: Php) -> None:
    php.send("start").ok(201)
    answer = php.send("query with the command line")
    assert answer.reason != "validation_failed", answer.content


def test_a_signal_has_no_arguments(php: Php) -> None:
    php.send("start").ok(201)
    php.send("signal with the command line").ok(202)


# Reports that come too late -----------------------------------------------------------------------


LATE = {"cancel": "run_cancelled", "terminate": "run_terminated"}


def is_ended_with_its_run(answer: Answer, task: Json) -> bool:
    """What a PHP worker asks before it goes on: else it ends."""
    body = answer.body
    return (
        answer.status == 409
        and body["task_id"] == task["task_id"]
        and body["reason"] in LATE.values()
        and body["can_continue"] is False
        and body["task_status"] == "cancelled"
    )


@pytest.mark.parametrize("verb", LATE)
@pytest.mark.parametrize("report", ["complete", "fail"])
def test_the_worker_of_a_stopped_run_goes_on(php: Php, verb: str, report: str) -> None:
    begun(php, schedule_activity(queue="q"))
    task = php.take("activity")
    php.send(verb).ok()
    answer = php.send(f"{report} an activity", **task)
    assert is_ended_with_its_run(answer, task)
    body = answer.refused(409, LATE[verb])
    assert body["outcome"] == "ignored"
    assert (body["activity_status"], body["attempt_status"]) == ("cancelled", "cancelled")
    assert (body["lease_owner"], body["lease_expires_at"]) == (None, None)
    assert body["recorded"] is False


def test_a_task_that_was_reported_before_was_completed(php: Php) -> None:
    begun(php, schedule_activity(queue="q"))
    task = php.take("activity")
    php.send("complete an activity", **task).ok()
    php.send("cancel").ok()
    php.send("complete an activity", **task).ok()
    body = php.send("fail an activity", **task).refused(409, "run_cancelled")
    assert body["task_status"] == "completed"
    assert (body["activity_status"], body["attempt_status"]) == ("completed", "completed")


def test_a_run_that_ended_otherwise_says_the_same(php: Php) -> None:
    begun(php, schedule_activity(queue="q"))
    task = php.take("activity")
    php.wire.advance(seconds=601)
    body = php.send("complete an activity", **task).refused(409, "run_closed")
    assert (body["task_status"], body["outcome"]) == ("cancelled", "ignored")


@pytest.mark.parametrize("verb", LATE)
def test_a_workflow_task_of_a_stopped_run_was_cancelled(php: Php, verb: str) -> None:
    php.send("register a worker").ok(201)
    php.send("start").ok(201)
    task = php.take("workflow")
    php.send(verb).ok()
    body = php.complete(task, complete_workflow()).refused(409, "run_closed")
    assert (body["task_id"], body["task_status"]) == (task["task_id"], "cancelled")
    assert body["can_continue"] is False


def test_a_workflow_task_that_was_completed_says_so(php: Php) -> None:
    php.send("register a worker").ok(201)
    php.send("start").ok(201)
    task = php.take("workflow")
    php.complete(task, schedule_activity(queue="q")).ok()
    body = php.send("renew a workflow task", **task).refused(409, "task_not_leased")
    assert body["task_status"] == "completed"


# Policies, as the SDK's documents write them ------------------------------------------------------


def test_a_policy_of_the_documents_is_what_it_says(php: Php) -> None:
    policy = {
        "maximum_attempts": 5,
        "initial_interval_seconds": 1,
        "maximum_interval_seconds": 20,
    }
    begun(php, schedule_activity(queue="q", retry_policy=policy, start_to_close_timeout_seconds=30))
    told = php.take("activity")["retry_policy"]
    assert (told["max_attempts"], told["backoff_seconds"]) == (5, [1, 2, 4, 8])
    assert told["start_to_close_timeout"] == 30


def test_a_member_that_nobody_knows_is_named(php: Php) -> None:
    php.send("register a worker").ok(201)
    php.send("start").ok(201)
    task = php.take("workflow")
    command = schedule_activity(queue="q", retry_policy={"max_attempts": 2, "tries": 3})
    php.complete(task, command).invalid("commands.0.retry_policy.tries")
    php.complete(task, schedule_activity(queue="q", retry_policy={"max_attempts": 2})).ok()


def test_a_time_out_under_both_names_is_one(php: Php) -> None:
    php.send("register a worker").ok(201)
    php.send("start").ok(201)
    task = php.take("workflow")
    twice: Json = {"heartbeat_timeout": 5, "heartbeat_timeout_seconds": 6}
    php.complete(task, schedule_activity(queue="q", **twice)).invalid("commands.0")
    twice["heartbeat_timeout_seconds"] = 5
    php.complete(task, schedule_activity(queue="q", **twice)).ok()
    assert php.take("activity")["retry_policy"]["heartbeat_timeout"] == 5


def test_a_short_execution_bounds_the_run_that_the_sdk_asks_for(php: Php) -> None:
    """The SDKs send 600 s for a run unless told otherwise, whatever the execution may take."""
    php.send("start with a short execution").ok(201)
    known = php.wire.describe()
    assert (known["execution_timeout_seconds"], known["run_timeout_seconds"]) == (60, 60)


# One kind of task after the other -----------------------------------------------------------------


class Turn:
    """The loop of the SDK's worker: it polls for one kind after the other."""

    def __init__(self, php: Php) -> None:
        self._php = php
        self._kinds = itertools.cycle(("a workflow task", "an activity task", "a query task"))
        self.poll_count = 0

    def next(self) -> tuple[str, Json]:
        """The next task. An empty poll was ended for the sake of another kind, not by the time."""
        turns = self._php.wire.server.turns
        for kind in self._kinds:
            self.poll_count += 1
            ended = turns.ended_count
            answer = self._php.park(f"poll for {kind}").answer().ok()
            if answer["task"] is not None:
                return kind, answer["task"]
            assert turns.ended_count == ended + 1, "a poll waited for nothing"
        raise AssertionError


@pytest.mark.parametrize("ready", ["before", "later"])
def test_a_query_is_answered_though_the_worker_waits_for_other_tasks(php: Php, ready: str) -> None:
    begun(php, {"type": "start_timer", "delay_seconds": 100})
    headers = {CONTROL_VERSION: "2"}
    path = "/api/workflows/order-1/query/state"

    def ask() -> Parked:
        asked = php.wire.call_later("POST", path, {}, headers=headers)
        php.wire.until(lambda: php.wire.server.query_broker.open_count > 0)
        return asked

    if ready == "before":
        asked = ask()
        waiting = php.park("poll for a workflow task")
    else:
        waiting = php.park("poll for a workflow task")
        php.wire.until(lambda: php.wire.server.parked_polls.count > 0)
        asked = ask()
    assert waiting.answer().ok()["poll_status"] == "empty"
    assert php.park("poll for an activity task").answer().ok()["poll_status"] == "empty"
    task = php.park("poll for a query task").answer().ok()["task"]
    lease = {key: task[key] for key in ("lease_owner", "query_task_attempt")}
    answer = {
        **lease,
        "result": 7,
        "result_envelope": {"codec": "avro", "blob": encode(7, Frame.VALUE)},
    }
    php.wire.worker(f"/query-tasks/{task['query_task_id']}/complete", answer).ok()
    assert asked.answer().ok()["result"] == 7


def test_a_fan_out_does_not_wait_for_empty_polls(php: Php) -> None:
    """Five activities, one after the other, and not one poll that sits out its time."""
    begun(php, *[schedule_activity(queue="q") for _ in range(5)])
    turn, done = Turn(php), 0
    while done < 5:
        kind, task = turn.next()
        if kind == "an activity task":
            php.send("complete an activity", **task).ok()
            done += 1
        else:
            php.send("wait for history", **task).ok()
    # Two of three polls of a round are ended at most.
    assert turn.poll_count <= 3 * 10


def test_a_worker_that_never_asked_for_a_kind_is_left_alone(php: Php) -> None:
    wire = php.wire
    wire.register()
    wire.start()
    task = wire.take()
    waiting = wire.park("/workflow-tasks/poll", {"worker_id": "w1", "task_queue": "q"})
    wire.complete(task, schedule_activity())
    assert waiting.is_waiting


def test_a_worker_without_room_is_left_alone(php: Php) -> None:
    wire = php.wire
    wire.register("full", max_concurrent_activity_tasks=0)
    wire.poll("activity", "full")
    poll = {"worker_id": "full", "task_queue": "q", "timeout_seconds": 30}
    waiting = wire.park("/workflow-tasks/poll", poll)
    wire.start()
    task = waiting.answer().ok()["task"]
    waiting = wire.park("/workflow-tasks/poll", poll)
    wire.complete(task, schedule_activity())
    assert waiting.is_waiting
    assert wire.server.turns.ended_count == 0


def test_a_worker_that_does_not_come_is_left_alone_for_a_while(php: Php) -> None:
    """As one whose slots are all taken, and whose other polls wait at another node."""
    wire = php.wire
    wire.register()
    wire.poll("activity")
    wire.run_to(schedule_activity())
    poll = {"worker_id": "w1", "task_queue": "q", "timeout_seconds": 30}
    turns = wire.server.turns
    ended = 0
    for _ in range(100):
        parked = wire.park("/workflow-tasks/poll", poll)
        if parked.is_waiting:
            wire.advance(seconds=1)
            break
        ended += 1
    assert (ended, turns.ended_count) == (1, 1)
    for _ in range(120):
        parked = wire.park("/workflow-tasks/poll", poll)
        wire.advance(seconds=1)
    assert turns.ended_count <= 30


def test_a_worker_that_polls_for_all_kinds_at_once_is_left_alone(php: Php) -> None:
    """As the Python SDK does: one request for each task, and one for each poll that is parked."""
    wire = php.wire
    wire.register(max_concurrent_activity_tasks=1)
    poll = {"worker_id": "w1", "task_queue": "q", "timeout_seconds": 30}
    workflow = wire.park("/workflow-tasks/poll", poll)
    activity = wire.park("/activity-tasks/poll", poll)
    wire.start()
    task = workflow.answer().ok()["task"]
    workflow = wire.park("/workflow-tasks/poll", poll)
    wire.complete(task, *[schedule_activity() for _ in range(5)])
    # Its slot is taken now, and it polls for workflow tasks alone while four activities wait.
    first = activity.answer().ok()["task"]
    assert workflow.is_waiting
    assert wire.server.turns.ended_count == 0
    wire.start("order-2")
    assert workflow.answer().ok()["poll_status"] == "leased"
    workflow = wire.park("/workflow-tasks/poll", poll)
    assert workflow.is_waiting
    wire.report_attempt(first, "complete", result=None).ok()
    assert wire.server.turns.ended_count == 0


def test_a_look_that_finds_nothing_sends_the_worker_on(php: Php) -> None:
    """What the node knew to be ready was taken by somebody else."""
    wire = php.wire
    php.send("register a worker").ok(201)
    php.look_around()
    wire.register("w2")
    wire.start()
    task = wire.take(worker_id="w2")
    wire.complete(task, schedule_activity())
    php.wire.server.parked_polls.suspect(QueueKey("default", "q", "workflow"), {"Order"})

    assert php.park("poll for a workflow task").answer().ok()["poll_status"] == "empty"

    assert wire.server.turns.ended_count == 1
    assert php.take("activity")["activity_type"] == "charge"
