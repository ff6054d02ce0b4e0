"""The few requests and replies of the Durable Workflow protocol that a bench needs.

Requests are byte templates, replies are decoded into the fields that are read and no others, so
that the client costs well below the server. Ids are spliced unescaped: ours are plain, and the
server's are trusted to be URL- and JSON-safe.
"""

import base64
from collections.abc import Sequence
from typing import Final

import msgspec

BLOB: Final = b"wwHioz3/VYAiNwwCCgp3b3JsZAA="
PAYLOAD: Final = b'{"codec":"avro","blob":"' + BLOB + b'"}'
WORKFLOW_TYPE: Final = b"bench"
ACTIVITY_TYPE: Final = b"bench_step"

_HEADERS: Final = (
    b" HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Namespace: default\r\nContent-Type: application/json\r\n"
)
_CONTROL: Final = _HEADERS + b"X-Durable-Workflow-Control-Plane-Version: 2\r\n"
_WORKER: Final = _HEADERS + b"X-Durable-Workflow-Protocol-Version: 1.20\r\n"
_BODY: Final = b"Content-Length: %d\r\n\r\n%b"

_START: Final = b"POST /api/workflows" + _CONTROL + _BODY
_START_BODY: Final = (
    b'{"workflow_id":"%b","workflow_type":"' + WORKFLOW_TYPE + b'","task_queue":"%b",'
    b'"input":' + PAYLOAD + b"}"
)
_REGISTER: Final = b"POST /api/worker/register" + _WORKER + _BODY
_REGISTER_BODY: Final = (
    b'{"worker_id":"%b","task_queue":"%b","runtime":"python",'
    b'"sdk_version":"durable-workflow-python/2.12.0",'
    b'"supported_workflow_types":["' + WORKFLOW_TYPE + b'"],'
    b'"supported_activity_types":["' + ACTIVITY_TYPE + b'"],'
    b'"max_concurrent_workflow_tasks":%d,"max_concurrent_activity_tasks":%d}'
)
_HEARTBEAT: Final = b"POST /api/worker/heartbeat" + _WORKER + _BODY
_POLL_WORKFLOW: Final = b"POST /api/worker/workflow-tasks/poll" + _WORKER + _BODY
_POLL_WORKFLOW_BODY: Final = (
    b'{"worker_id":"%b","task_queue":"%b","poll_request_id":"wf-poll-%b",'
    b'"timeout_seconds":%d,"history_page_size":%d}'
)
_POLL_ACTIVITY: Final = b"POST /api/worker/activity-tasks/poll" + _WORKER + _BODY
_POLL_ACTIVITY_BODY: Final = (
    b'{"worker_id":"%b","task_queue":"%b","poll_request_id":"activity-poll-%b",'
    b'"timeout_seconds":%d}'
)
_COMPLETE_WORKFLOW: Final = b"POST /api/worker/workflow-tasks/%b/complete" + _WORKER + _BODY
_COMPLETE_WORKFLOW_BODY: Final = b'{"lease_owner":"%b","workflow_task_attempt":%d,"commands":%b}'
_COMPLETE_ACTIVITY: Final = b"POST /api/worker/activity-tasks/%b/complete" + _WORKER + _BODY
_COMPLETE_ACTIVITY_BODY: Final = (
    b'{"activity_attempt_id":"%b","lease_owner":"%b","result":' + PAYLOAD + b"}"
)
_HISTORY: Final = b"POST /api/worker/workflow-tasks/%b/history" + _WORKER + _BODY
_HISTORY_BODY: Final = (
    b'{"lease_owner":"%b","workflow_task_attempt":%d,"next_history_page_token":"%b"}'
)

READY: Final = b"GET /api/ready" + _CONTROL + b"\r\n"

COMPLETE_RUN: Final = b'[{"type":"complete_workflow","result":' + PAYLOAD + b"}]"


class Event(msgspec.Struct, gc=False):
    """The two fields of a history event by which a lean worker knows where a run stands."""

    event_type: str
    sequence: int


class WorkflowTask(msgspec.Struct):
    """A leased workflow task with the first page of its history."""

    task_id: str
    workflow_id: str
    run_id: str
    workflow_task_attempt: int
    history_events: list[Event]
    next_history_page_token: str | None = None


class ActivityTask(msgspec.Struct):
    """A leased activity task."""

    task_id: str
    activity_attempt_id: str


class WorkflowPoll(msgspec.Struct):
    """The reply to a poll for workflow tasks; no task means the poll ran out."""

    task: WorkflowTask | None


class ActivityPoll(msgspec.Struct):
    """The reply to a poll for activity tasks; no task means the poll ran out."""

    task: ActivityTask | None


class HistoryPage(msgspec.Struct):
    """A further page of a leased task's history."""

    history_events: list[Event]
    next_history_page_token: str | None = None


class Started(msgspec.Struct):
    """The reply to a start."""

    workflow_id: str
    run_id: str


decode_workflow_poll = msgspec.json.Decoder(WorkflowPoll).decode
decode_activity_poll = msgspec.json.Decoder(ActivityPoll).decode
decode_history_page = msgspec.json.Decoder(HistoryPage).decode
decode_started = msgspec.json.Decoder(Started).decode


def start(workflow_id: bytes, queue: bytes) -> bytes:
    """Start a workflow."""
    body = _START_BODY % (workflow_id, queue)
    return _START % (len(body), body)


def read_history(run: Started, *, page_size: int) -> bytes:
    """Read the first page of a run's history as an operator would."""
    path = f"/api/workflows/{run.workflow_id}/runs/{run.run_id}/history?page_size={page_size}"
    return b"GET " + path.encode() + _CONTROL + b"\r\n"


def register(worker_id: bytes, queue: bytes, *, slots: int) -> bytes:
    """Register a worker that may hold `slots` tasks of each kind."""
    body = _REGISTER_BODY % (worker_id, queue, slots, slots)
    return _REGISTER % (len(body), body)


def heartbeat(worker_id: bytes) -> bytes:
    """Say that a worker is alive."""
    body = b'{"worker_id":"%b"}' % worker_id
    return _HEARTBEAT % (len(body), body)


def poll_workflow_task(
    worker_id: bytes, queue: bytes, *, poll_id: bytes, timeout_seconds: int, page_size: int
) -> bytes:
    """Poll for a workflow task with the first `page_size` events of its history."""
    body = _POLL_WORKFLOW_BODY % (worker_id, queue, poll_id, timeout_seconds, page_size)
    return _POLL_WORKFLOW % (len(body), body)


def poll_activity_task(
    worker_id: bytes, queue: bytes, *, poll_id: bytes, timeout_seconds: int
) -> bytes:
    """Poll for an activity task."""
    body = _POLL_ACTIVITY_BODY % (worker_id, queue, poll_id, timeout_seconds)
    return _POLL_ACTIVITY % (len(body), body)


def complete_workflow_task(task: WorkflowTask, worker_id: bytes, commands: bytes) -> bytes:
    """Answer a workflow task with a JSON list of commands."""
    body = _COMPLETE_WORKFLOW_BODY % (worker_id, task.workflow_task_attempt, commands)
    return _COMPLETE_WORKFLOW % (task.task_id.encode(), len(body), body)


def complete_activity_task(task: ActivityTask, worker_id: bytes) -> bytes:
    """Complete an activity attempt."""
    body = _COMPLETE_ACTIVITY_BODY % (task.activity_attempt_id.encode(), worker_id)
    return _COMPLETE_ACTIVITY % (task.task_id.encode(), len(body), body)


def load_history_page(task: WorkflowTask, worker_id: bytes, token: str) -> bytes:
    """Ask for the page of a leased task's history that a token names."""
    body = _HISTORY_BODY % (worker_id, task.workflow_task_attempt, token.encode())
    return _HISTORY % (task.task_id.encode(), len(body), body)


def token_after(sequence: int) -> str:
    """The page token that means "what follows this history position"."""
    return base64.b64encode(b"%d" % sequence).decode()


def schedule_activity(queue: bytes) -> bytes:
    """A completion that schedules one activity."""
    return b"[" + _activity_command(queue, b"") + b"]"


def schedule_parallel_activities(queue: bytes, size: int) -> bytes:
    """A completion that schedules a parallel group of activities as the first step of a run."""
    return b"[" + b",".join(_group_members(queue, size)) + b"]"


def _group_members(queue: bytes, size: int) -> Sequence[bytes]:
    members = []
    for index in range(size):
        group = (
            b'"parallel_group_id":"parallel-activities:1:%d","parallel_group_kind":"activity",'
            b'"parallel_group_base_sequence":1,"parallel_group_size":%d,'
            b'"parallel_group_index":%d' % (size, size, index)
        )
        members.append(
            _activity_command(queue, b"," + group + b',"parallel_group_path":[{' + group + b"}]")
        )
    return members


def _activity_command(queue: bytes, more: bytes) -> bytes:
    return b'{"type":"schedule_activity","activity_type":"%b","queue":"%b","arguments":%b%b}' % (
        ACTIVITY_TYPE,
        queue,
        PAYLOAD,
        more,
    )
