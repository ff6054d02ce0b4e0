"""A workflow with local work for which its worker asks leave, by plain protocol calls."""

from typing import Any

from tests.faults.full_workflow import CONTROL, Call, Json, Voyage, avro

HISTORY = [
    "StartAccepted",
    "WorkflowStarted",
    "SideEffectRecorded",
    "ActivityScheduled",
    "ActivityStarted",
    "ActivityHeartbeatRecorded",
    "ActivityRetryScheduled",
    "ActivityStarted",
    "ActivityCompleted",
    "WorkflowCompleted",
]
"""What the run must look like in the end, whatever happened."""
FAILED = {"outcome": "failed", "message": "no luck", "exception_type": "NoLuck"}
DONE = {"outcome": "completed", "result": avro("rowed"), "payload_codec": "avro"}
CALL = {
    "type": "record_local_activity",
    "activity_type": "row",
    "execution_mode": "local",
    "arguments": avro([1]),
    "payload_codec": "avro",
    "retry_policy": {"max_attempts": 2, "backoff_seconds": [0]},
}


class LocalVoyage(Voyage):
    """One run of it, by one client and one worker that asks before it runs anything."""

    able = ("cooperative_cancellation", "prepared_local_activities")

    def sail(self) -> Json:
        self._register()
        poll = self._poll("workflow")
        self._start()
        task = self._task(poll)
        effect = {"type": "record_side_effect", "result": avro("x")}
        checkpoint = {"checkpoint_id": "c1", "start_sequence": 1, "commands": [effect]}
        self._say(task, "checkpoint", **checkpoint)
        self.promised["SideEffectRecorded"] += 1

        first = self._begin(task, 1)
        told = self._say(task, f"{first}/control", renew_lease=True)
        assert (told["active"], told["renewed"], told["stop_required"]) == (True, True, False)
        told = self._say(task, f"{first}/heartbeat", progress={"details": {"done": 1}})
        assert told["active"]
        self.promised["ActivityHeartbeatRecorded"] += 1

        poll = self._poll("workflow")
        told = self._end(task, first, FAILED, "ActivityRetryScheduled")
        assert told["claim_released"]
        task = self._task(poll)
        assert [task["task_id"]] == told["created_task_ids"]
        second = self._begin(task, 2)
        assert second != first
        assert not self._end(task, second, DONE, "ActivityCompleted")["claim_released"]

        command = {"type": "complete_workflow", "result": avro("done")}
        self._complete(task, command, promise="WorkflowCompleted")
        return Call(self, "GET", "/api/workflows/voyage", None, CONTROL).ok(200)

    def _begin(self, task: Json, number: int) -> str:
        """Ask for leave; whoever repeats it is told of the same attempt."""
        asked = {"sequence": 2, "worker_attempt_id": f"{number}" * 64, "descriptor": CALL}
        told = self._say(task, "prepare", **asked)
        assert (told["prepared"], told["attempt_number"]) == (True, number)
        self.promised["ActivityStarted"] += 1
        return str(told["activity_attempt_id"])

    def _end(self, task: Json, attempt_id: str, report: Json, event: str) -> Json:
        told = self._say(task, f"{attempt_id}/outcome", report=report)
        assert (told["recorded"], told["event_type"]) == (True, event)
        self.promised[event] += 1
        return told

    def _say(self, task: Json, verb: str, **members: Any) -> Json:
        body = {"lease_owner": "w1", "workflow_task_attempt": 1, **members}
        return self._worker(f"workflow-tasks/{task['task_id']}/local-activities/{verb}", body).ok(
            200
        )
