"""Refusals that workers understand without asking people: come again, with the same request.

SDKs of 2.12 pause and repeat a request if its refusal has an exact shape, and back off like after
any other error if it has not. So a shape is given only where all of its members are at hand.
"""

from typing import Any

import msgspec

from perdure.core.rejection import LongPollCapacityExhausted
from perdure.protocols.durable_workflow.reasons import STORE_REASONS
from perdure.web.message import HttpError, Request

BACKEND_UNAVAILABLE = "backend_unavailable"

_PREFIX = b"/api/worker/"
_POLLS = {
    b"workflow-tasks/poll": ("poll_workflow_task", "workflow_task"),
    b"activity-tasks/poll": ("poll_activity_task", "activity_task"),
    b"query-tasks/poll": ("poll_query_task", "query_task"),
    b"update-validation-tasks/poll": ("poll_update_validation_task", "workflow_task"),
}
_SIGNS_OF_LIFE = {b"register": "register_worker", b"heartbeat": "heartbeat_worker"}


def shaped(request: Request, error: HttpError) -> HttpError:
    """A refusal of the worker plane in the shape that its worker can act upon, if it has one."""
    if error.reason == LongPollCapacityExhausted.reason:
        return _crowded(request, error)
    if error.reason in STORE_REASONS and request.method == "POST":
        return _unavailable(request, error)
    return error


_REPORTS = (b"/complete", b"/fail")
_ID_LENGTH_MAX = 255
_DECIDED = frozenset({404, 409, 422})
"""Refusals after which nothing is on disk; of others that is not known."""


def refused_report(request: Request, error: HttpError) -> dict[str, Any]:
    """What a refusal repeats of a report on a task, and that nothing came of it."""
    told = _told(request)
    members: dict[str, Any] = {}
    match told.get("workflow_task_attempt"):
        case int(number) if 0 < number < 2**31:
            members["workflow_task_attempt"] = number
    match told.get("activity_attempt_id"):
        case str(attempt_id) if len(attempt_id) <= _ID_LENGTH_MAX:
            members["activity_attempt_id"] = attempt_id
    if error.status in _DECIDED and request.path.endswith(_REPORTS):
        members["recorded"] = False
    return members


def _crowded(request: Request, error: HttpError) -> HttpError:
    poll, told = _POLLS.get(request.path.removeprefix(_PREFIX)), _told(request)
    if poll is None or not told.get("task_queue"):
        return error
    details = {
        "poll_status": error.reason,
        "task": None,
        "task_kind": poll[1],
        "task_queue": told["task_queue"],
        "retryable": True,
        "retry_after_seconds": 1,
        **error.details,
    }
    return _again(error, error.reason, details)


def _unavailable(request: Request, error: HttpError) -> HttpError:
    """The world failed. Whether the change is on disk is not known here, and repeating is safe."""
    told = _told(request)
    members = _identity(request, told)
    if members is None:
        return error
    details = {
        **error.details,
        **members,
        "outcome": "unknown",
        "storage_reason": error.reason,
        "retryable": True,
    }
    return _again(error, BACKEND_UNAVAILABLE, details)


def _identity(request: Request, told: dict[str, Any]) -> dict[str, Any] | None:
    """What the worker compares with its request."""
    path = request.path.removeprefix(_PREFIX)
    if path in _POLLS:
        if not all(told.get(name) for name in ("worker_id", "task_queue")):
            return None
        members = {
            "operation": _POLLS[path][0],
            "worker_id": told["worker_id"],
            "task_queue": told["task_queue"],
            "task": None,
            "poll_status": BACKEND_UNAVAILABLE,
        }
        if told.get("poll_request_id"):
            members["poll_request_id"] = told["poll_request_id"]
            members["retry_same_poll_request_id"] = True
        return members
    if path in _SIGNS_OF_LIFE:
        if not told.get("worker_id"):
            return None
        return {
            "operation": _SIGNS_OF_LIFE[path],
            "worker_id": told["worker_id"],
            "task_queue": told.get("task_queue"),
        }
    is_heartbeat = path.endswith(b"/heartbeat") and path.count(b"/") == 2
    if path.startswith(b"workflow-tasks/") and is_heartbeat:
        return {
            "operation": "heartbeat_workflow_task",
            "worker_id": told.get("lease_owner"),
            "task_queue": None,
            "task_id": request.params.get("task_id"),
            "lease_owner": told.get("lease_owner"),
            "workflow_task_attempt": told.get("workflow_task_attempt"),
        }
    if path.startswith(b"registrations/") and path.endswith(b"/deregister"):
        return {
            "operation": "deregister_worker",
            "worker_id": request.params.get("worker_id"),
            "registration_token": told.get("registration_token"),
        }
    return None


def _told(request: Request) -> dict[str, Any]:
    """The body of a request, or nothing if it makes no sense."""
    try:
        told = msgspec.json.decode(request.body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return {}
    return told if isinstance(told, dict) else {}


def _again(error: HttpError, reason: str, details: dict[str, Any]) -> HttpError:
    headers = error.headers
    if not any(name == b"retry-after" for name, _ in headers):
        headers = (*headers, (b"retry-after", b"%d" % details["retry_after_seconds"]))
    return HttpError(error.status, reason, error.message, details, headers)
