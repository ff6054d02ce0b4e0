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
    (Path(__file__).parents[1] / "fixtures" / "php-sdk" / "requests.json").read_text()
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
