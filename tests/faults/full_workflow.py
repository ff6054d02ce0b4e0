"""A workflow with everything in it, driven by plain protocol calls, repeated like the SDK's.

Whoever drives it sends the same body under the same identity until it is answered; so whatever
happens to the servers meanwhile, the history that comes out is always the same.
"""

import itertools
import json
import threading
from collections import Counter
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlsplit

from perdure.core.payload import Frame, decode, encode

Json = dict[str, Any]

CONTROL = {"X-Durable-Workflow-Control-Plane-Version": "2"}
WORKER = {"X-Durable-Workflow-Protocol-Version": "1.20"}
QUEUE = "q"
PATIENCE_SECONDS = 90

HISTORY = [
    "StartAccepted",
    "WorkflowStarted",
    "ActivityScheduled",
    "SignalReceived",  # early: it waited for the end of the first task
    "ActivityStarted",
    "ActivityCompleted",
    "TimerScheduled",
    "TimerFired",
    "ChildWorkflowScheduled",
    "ChildRunStarted",
    "ChildRunCompleted",
    "ConditionWaitOpened",
    "UpdateAccepted",
    "UpdateApplied",
    "UpdateCompleted",
    "ConditionWaitOpened",
    "SignalReceived",  # go
    "ConditionWaitSatisfied",
    "WorkflowContinuedAsNew",
]
"""What the first run must look like in the end, whatever happened."""


def avro(value: Any) -> Json:
    return {"codec": "avro", "blob": encode(value, Frame.VALUE)}


class Voyage:
    """One run of it, by one client and one worker.

    An eager worker polls before there is work, so that its leases are granted in the beat that
    makes the work; another one polls afterwards. `on_silence` is called when a server has gone
    away, and returns the address of the next one.
    """

    able: tuple[str, ...] = ("update_validation_tasks",)
    """What the worker says that it can."""

    def __init__(self, url: str, on_silence: Callable[["Voyage"], str], *, eager: bool) -> None:
        self.url = url
        self.promised: Counter[str] = Counter()
        """What was acknowledged: kinds of events, signals by their names, workers by theirs."""
        self.repeated = 0
        self._on_silence = on_silence
        self._eager = eager
        self._numbers = itertools.count(1)
        self._reviving = threading.Lock()

    def revive(self, url: str) -> None:
        """Somebody got no answer from this address."""
        with self._reviving:
            self.repeated += 1
            if url == self.url:
                self.url = self._on_silence(self)

    def sail(self) -> Json:
        """From the registration of the worker to the description of the closed workflow."""
        self._register()
        poll = self._poll("workflow")
        self._start()
        self._signal("early")
        task = self._task(poll)

        poll = self._poll("activity")
        command: Json = {"type": "schedule_activity", "activity_type": "row"}
        self._complete(task, command, promise="ActivityScheduled")
        attempt = self._leased(poll)
        self.promised["ActivityStarted"] += 1

        poll = self._poll("workflow")
        self._complete_activity(attempt)
        task = self._task(poll, "ActivityCompleted")

        poll = self._poll("workflow")
        command = {"type": "start_timer", "delay_seconds": 0}
        self._complete(task, command, promise="TimerScheduled")
        task = self._task(poll, "TimerFired")

        poll = self._poll("workflow")
        command = {"type": "start_child_workflow", "workflow_type": "child"}
        self._complete(task, command, promise="ChildRunStarted")
        task = self._task(poll, of="child")

        poll = self._poll("workflow")
        command = {"type": "complete_workflow", "result": avro("from the child")}
        self._complete(task, command, promise="WorkflowCompleted")
        task = self._task(poll, "ChildRunCompleted")

        poll = self._poll("workflow")
        wait: Json = {"type": "open_condition_wait", "condition_key": "go"}
        self._complete(task, wait, promise="ConditionWaitOpened")
        asking = QueryRouter(self)
        judged = self._leased(poll)

        poll = self._poll("workflow")
        self._approve(judged)
        task = self._task(poll, "UpdateAccepted")

        poll = self._poll("workflow")
        update_id = task["workflow_update_id"]
        command = {"type": "complete_update", "update_id": update_id, "result": avro("tacked")}
        self._complete(task, command, promise="UpdateCompleted")
        task = self._task(poll, "UpdateCompleted")
        assert asking.answer() == (200, "tacked", update_id)

        poll = self._poll("workflow")
        self._complete(task, wait, promise="ConditionWaitOpened")
        self._signal("go")
        task = self._task(poll, "SignalReceived")

        poll = self._poll("workflow")
        command = {"type": "continue_as_new", "arguments": avro(["again"])}
        self._complete(task, command, promise="WorkflowContinuedAsNew")
        task = self._task(poll)
        assert decode(task["arguments"]["blob"]) == ["again"]

        command = {"type": "complete_workflow", "result": avro("done")}
        self._complete(task, command, promise="WorkflowCompleted")
        return Call(self, "GET", "/api/workflows/voyage", None, CONTROL).ok(200)

    # Calls ---------------------------------------------------------------------------------------

    def _register(self) -> None:
        body = {
            "worker_id": "w1",
            "task_queue": QUEUE,
            "runtime": "python",
            "sdk_version": "durable-workflow-python/2.12.0",
            "supported_workflow_types": ["voyage", "child"],
            "supported_activity_types": ["row"],
            "capabilities": list(self.able),
            "workflow_command_contracts": {
                "voyage": {"updates": ["tack"], "update_validators": ["tack"]}
            },
            "process_metrics": {"host": "h", "process_id": 1, "process_started_at": "t"},
        }
        self._worker("register", body).ok(201)
        self.promised["worker w1"] += 1

    def _start(self) -> None:
        body = {
            "workflow_id": "voyage",
            "workflow_type": "voyage",
            "task_queue": QUEUE,
            "input": avro(["first"]),
        }
        repeated = self.repeated
        status, answer = Call(self, "POST", "/api/workflows", body, CONTROL).answer()
        # A start has no identity of its own: if it was repeated, the first one may have counted.
        is_known = status == 409 and answer["reason"] == "duplicate_not_allowed"
        assert status == 201 or (is_known and self.repeated > repeated), answer
        self.promised["WorkflowStarted"] += 1

    def _signal(self, name: str) -> None:
        body = {"input": avro([name]), "request_id": f"request-{name}"}
        path = f"/api/workflows/voyage/signal/{name}"
        Call(self, "POST", path, body, CONTROL).ok(202)
        self.promised[f"signal {name}"] += 1

    def _poll(self, kind: str) -> "Call":
        body = {
            "worker_id": "w1",
            "task_queue": QUEUE,
            "timeout_seconds": PATIENCE_SECONDS - 10,
            "poll_request_id": f"{kind}-poll-{next(self._numbers)}",
            "task_kinds": ["workflow", "update_validation"],
        }
        poll = self._worker(f"{kind}-tasks/poll", body)
        if self._eager:
            poll.send()
        return poll

    def _leased(self, poll: "Call") -> Json:
        answer = poll.ok(200)
        assert answer["poll_status"] == "leased", answer
        task: Json = answer["task"]
        assert task["lease_owner"] == "w1"
        return task

    def _task(self, poll: "Call", last_event: str | None = None, *, of: str = "voyage") -> Json:
        task = self._leased(poll)
        assert (task["workflow_type"], task["workflow_task_attempt"]) == (of, 1), task
        types = [event["event_type"] for event in task["history_events"]]
        assert last_event in (None, types[-1]), types
        return task

    def _complete(self, task: Json, command: Json, *, promise: str) -> None:
        body = {"lease_owner": "w1", "workflow_task_attempt": 1, "commands": [command]}
        answer = self._worker(f"workflow-tasks/{task['task_id']}/complete", body).ok(200)
        assert answer["outcome"] == "completed"
        self.promised[promise] += 1

    def _approve(self, judged: Json) -> None:
        assert (judged["task_kind"], judged["update_name"]) == ("update_validation", "tack")
        body = {"lease_owner": "w1", "update_validation_attempt": 1}
        path = f"update-validation-tasks/{judged['update_validation_task_id']}/approve"
        assert self._worker(path, body).ok(200)["outcome"] == "approved"
        self.promised["UpdateAccepted"] += 1

    def _complete_activity(self, attempt: Json) -> None:
        body = {
            "lease_owner": "w1",
            "activity_attempt_id": attempt["activity_attempt_id"],
            "result": avro("rowed"),
        }
        answer = self._worker(f"activity-tasks/{attempt['task_id']}/complete", body).ok(200)
        assert answer["outcome"] == "completed"
        self.promised["ActivityCompleted"] += 1

    def _worker(self, path: str, body: Json) -> "Call":
        return Call(self, "POST", f"/api/worker/{path}", body, WORKER)


class QueryRouter:
    """A client beside the worker: it asks for an update until it has the outcome."""

    def __init__(self, voyage: Voyage) -> None:
        self._voyage = voyage
        self._answer: tuple[int, Json] = (0, {})
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self) -> None:
        body = {
            "input": avro(["port"]),
            "request_id": "request-tack",
            "wait_for": "completed",
            "wait_timeout_seconds": PATIENCE_SECONDS - 10,
        }
        path = "/api/workflows/voyage/update/tack"
        self._answer = Call(self._voyage, "POST", path, body, CONTROL).answer()

    def answer(self) -> tuple[int, Any, str]:
        """The status, the result and the id."""
        self._thread.join(PATIENCE_SECONDS)
        status, body = self._answer
        return status, body.get("result"), str(body.get("update_id"))


class Call:
    """One request, sent again and again until somebody answers it."""

    def __init__(
        self, voyage: Voyage, method: str, path: str, body: Json | None, headers: dict[str, str]
    ) -> None:
        self._voyage = voyage
        self._request = (method, path, None if body is None else json.dumps(body))
        self._headers = {"Content-Type": "application/json", **headers}
        self._url = ""
        self._connection: HTTPConnection | None = None

    def send(self) -> None:
        """Send it, without waiting for the answer; silence is noticed when somebody waits."""
        self._url = self._voyage.url
        self._connection = HTTPConnection(urlsplit(self._url).netloc, timeout=PATIENCE_SECONDS)
        try:
            self._connection.request(*self._request, headers=self._headers)
        except OSError:
            self._connection.close()

    def answer(self) -> tuple[int, Json]:
        while True:
            if self._connection is None:
                self.send()
            assert self._connection is not None
            try:
                response = self._connection.getresponse()
                return response.status, json.loads(response.read())
            except (OSError, HTTPException):
                self._voyage.revive(self._url)
            finally:
                self._connection.close()
                self._connection = None

    def ok(self, status: int) -> Json:
        """The body of a success."""
        got, body = self.answer()
        assert got == status, (self._request, got, body)
        return body
