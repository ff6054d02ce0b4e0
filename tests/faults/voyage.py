"""A workflow with everything in it, driven by plain protocol calls that are repeated like the SDK's.

Whoever drives it sends the same body under the same identity until it is answered; so whatever
happens to the servers meanwhile, the history that comes out is always the same.
"""

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx

from perdure.core.payload import Frame, decode, encode

Json = dict[str, Any]

CONTROL = {"X-Durable-Workflow-Control-Plane-Version": "2"}
WORKER = {"X-Durable-Workflow-Protocol-Version": "1.20"}
QUEUE = "q"

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
    "SignalReceived",  # go
    "ConditionWaitSatisfied",
    "WorkflowContinuedAsNew",
]
"""What the first run must look like in the end."""


def avro(value: Any) -> Json:
    return {"codec": "avro", "blob": encode(value, Frame.VALUE)}


class Voyage:
    """One run of it. `on_silence` is called when a server goes away, and returns the next one."""

    def __init__(self, url: str, on_silence: Callable[["Voyage"], str]) -> None:
        self.promised: Counter[str] = Counter()
        """What was acknowledged: kinds of events, signals by their names, workers by theirs."""
        self.repeated = 0
        self._on_silence = on_silence
        self._numbers = itertools.count(1)
        self._client = httpx.Client(base_url=url, timeout=30, trust_env=False)

    def sail(self) -> Json:
        """From the registration of the worker to the description of the closed workflow."""
        try:
            return self._sail()
        finally:
            self._client.close()

    def _sail(self) -> Json:
        self._register()
        self._start()
        self._signal("early")
        self._complete(self._task(), self._activity_command(), promise="ActivityScheduled")
        self._do_activity()
        self._complete(
            self._task("ActivityCompleted"),
            {"type": "start_timer", "delay_seconds": 0},
            promise="TimerScheduled",
        )
        child = {"type": "start_child_workflow", "workflow_type": "child", "arguments": avro([])}
        self._complete(self._task("TimerFired"), child, promise="ChildRunStarted")
        finished = {"type": "complete_workflow", "result": avro("from the child")}
        self._complete(self._task(of="child"), finished, promise="WorkflowCompleted")
        wait = {"type": "open_condition_wait", "condition_key": "go"}
        self._complete(self._task("ChildRunCompleted"), wait, promise="ConditionWaitOpened")
        self._signal("go")
        again = {"type": "continue_as_new", "arguments": avro(["again"])}
        self._complete(self._task("SignalReceived"), again, promise="WorkflowContinuedAsNew")
        last = self._task()
        assert decode(last["arguments"]["blob"]) == ["again"]
        self._complete(
            last, {"type": "complete_workflow", "result": avro("done")}, promise="WorkflowCompleted"
        )
        return self._call("GET", "/api/workflows/voyage", None, CONTROL).json()  # type: ignore[no-any-return]

    # Calls ---------------------------------------------------------------------------------------

    def _register(self) -> None:
        body = {
            "worker_id": "w1",
            "task_queue": QUEUE,
            "runtime": "python",
            "sdk_version": "durable-workflow-python/2.12.0",
            "supported_workflow_types": ["voyage", "child"],
            "supported_activity_types": ["row"],
            "process_metrics": {"host": "h", "process_id": 1, "process_started_at": "t"},
        }
        self._worker("register", body, expect=201)
        self.promised["worker w1"] += 1

    def _start(self) -> None:
        body = {
            "workflow_id": "voyage",
            "workflow_type": "voyage",
            "task_queue": QUEUE,
            "input": avro(["first"]),
        }
        repeated = self.repeated
        answer = self._call("POST", "/api/workflows", body, CONTROL)
        # A start has no identity of its own: if it was repeated, the first one may have counted.
        is_known = answer.status_code == 409 and answer.json()["reason"] == "duplicate_not_allowed"
        assert answer.status_code == 201 or (is_known and self.repeated > repeated), answer.text
        self.promised["WorkflowStarted"] += 1

    def _signal(self, name: str) -> None:
        body = {"input": avro([name]), "request_id": f"request-{name}"}
        answer = self._call("POST", f"/api/workflows/voyage/signal/{name}", body, CONTROL)
        assert answer.status_code == 202, answer.text
        self.promised[f"signal {name}"] += 1

    def _task(self, last_event: str | None = None, *, of: str = "voyage") -> Json:
        task = self._poll("workflow")
        assert task["workflow_type"] == of, task
        types = [event["event_type"] for event in task["history_events"]]
        assert last_event in (None, types[-1]), types
        return task

    def _poll(self, kind: str) -> Json:
        body = {
            "worker_id": "w1",
            "task_queue": QUEUE,
            "timeout_seconds": 20,
            "poll_request_id": f"{kind}-poll-{next(self._numbers)}",
        }
        answer = self._worker(f"{kind}-tasks/poll", body)
        assert answer["poll_status"] == "leased", answer
        task: Json = answer["task"]
        return task

    def _complete(self, task: Json, command: Json, *, promise: str) -> None:
        body = {
            "lease_owner": "w1",
            "workflow_task_attempt": task["workflow_task_attempt"],
            "commands": [command],
        }
        answer = self._worker(f"workflow-tasks/{task['task_id']}/complete", body)
        assert answer["outcome"] == "completed"
        self.promised[promise] += 1

    def _do_activity(self) -> None:
        attempt = self._poll("activity")
        self.promised["ActivityStarted"] += 1
        body = {
            "lease_owner": "w1",
            "activity_attempt_id": attempt["activity_attempt_id"],
            "result": avro("rowed"),
        }
        answer = self._worker(f"activity-tasks/{attempt['task_id']}/complete", body)
        assert answer["outcome"] == "completed"
        self.promised["ActivityCompleted"] += 1

    def _activity_command(self) -> Json:
        return {"type": "schedule_activity", "activity_type": "row", "arguments": avro([])}

    def _worker(self, path: str, body: Json, *, expect: int = 200) -> Json:
        answer = self._call("POST", f"/api/worker/{path}", body, WORKER)
        assert answer.status_code == expect, (path, answer.text)
        decoded: Json = answer.json()
        return decoded

    def _call(
        self, method: str, path: str, body: Json | None, headers: dict[str, str]
    ) -> httpx.Response:
        """Send the same again until somebody answers."""
        while True:
            try:
                return self._client.request(method, path, json=body, headers=headers)
            except httpx.TransportError:
                self.repeated += 1
                url = self._on_silence(self)
                self._client.close()
                self._client = httpx.Client(base_url=url, timeout=30, trust_env=False)
