"""Refusals in the exact form that makes worker SDKs repeat the same request by themselves.

SDKs of 2.12 pause and repeat a request if its refusal has this form; after any other error they
back off. So the form is used only if all of its members are known.
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
_REGISTRATIONS = {b"register": "register_worker", b"heartbeat": "heartbeat_worker"}


def in_retry_form(request: Request, error: HttpError) -> HttpError:
    """The refusal in the form that the worker's SDK repeats, if there is one for this request."""
    if error.reason == LongPollCapacityExhausted.reason:
        return _too_many_polls(request, error)
    if error.reason in STORE_REASONS and request.method == "POST":
        return _unavailable(request, error)
    return error


_REPORTS = (b"/complete", b"/fail")
_ID_LENGTH_MAX = 255
_DECIDED = frozenset({404, 409, 422})
"""Statuses of refusals that were decided before anything was written."""


def refused_report(request: Request, error: HttpError) -> dict[str, Any]:
    """Members that a refused report repeats, and `recorded: false` if nothing was written."""
    members_sent = _members_sent(request)
    members: dict[str, Any] = {}
    match members_sent.get("workflow_task_attempt"):
        case int(number) if 0 < number < 2**31:
            members["workflow_task_attempt"] = number
    match members_sent.get("activity_attempt_id"):
        case str(attempt_id) if len(attempt_id) <= _ID_LENGTH_MAX:
            members["activity_attempt_id"] = attempt_id
    if error.status in _DECIDED and request.path.endswith(_REPORTS):
        members["recorded"] = False
    return members


def _too_many_polls(request: Request, error: HttpError) -> HttpError:
    poll, members_sent = _POLLS.get(request.path.removeprefix(_PREFIX)), _members_sent(request)
    if poll is None or not members_sent.get("task_queue"):
        return error
    details = {
        "poll_status": error.reason,
        "task": None,
        "task_kind": poll[1],
        "task_queue": members_sent["task_queue"],
        "retryable": True,
        "retry_after_seconds": 1,
        **error.details,
    }
    return _retryable(error, error.reason, details)


def _unavailable(request: Request, error: HttpError) -> HttpError:
    """The store failed. The change may or may not be on disk; repeating the request is safe."""
    members_sent = _members_sent(request)
    members = _identity(request, members_sent)
    if members is None:
        return error
    details = {
        **error.details,
        **members,
        "outcome": "unknown",
        "storage_reason": error.reason,
        "retryable": True,
    }
    return _retryable(error, BACKEND_UNAVAILABLE, details)


def _identity(request: Request, members_sent: dict[str, Any]) -> dict[str, Any] | None:
    """The members that the worker compares with its request; None if one of them is missing."""
    path = request.path.removeprefix(_PREFIX)
    if path in _POLLS:
        if not all(members_sent.get(name) for name in ("worker_id", "task_queue")):
            return None
        members = {
            "operation": _POLLS[path][0],
            "worker_id": members_sent["worker_id"],
            "task_queue": members_sent["task_queue"],
            "task": None,
            "poll_status": BACKEND_UNAVAILABLE,
        }
        if members_sent.get("poll_request_id"):
            members["poll_request_id"] = members_sent["poll_request_id"]
            members["retry_same_poll_request_id"] = True
        return members
    if path in _REGISTRATIONS:
        if not members_sent.get("worker_id"):
            return None
        return {
            "operation": _REGISTRATIONS[path],
            "worker_id": members_sent["worker_id"],
            "task_queue": members_sent.get("task_queue"),
        }
    is_heartbeat = path.endswith(b"/heartbeat") and path.count(b"/") == 2
    if path.startswith(b"workflow-tasks/") and is_heartbeat:
        return {
            "operation": "heartbeat_workflow_task",
            "worker_id": members_sent.get("lease_owner"),
            "task_queue": None,
            "task_id": request.params.get("task_id"),
            "lease_owner": members_sent.get("lease_owner"),
            "workflow_task_attempt": members_sent.get("workflow_task_attempt"),
        }
    if path.startswith(b"registrations/") and path.endswith(b"/deregister"):
        return {
            "operation": "deregister_worker",
            "worker_id": request.params.get("worker_id"),
            "registration_token": members_sent.get("registration_token"),
        }
    return None


def _members_sent(request: Request) -> dict[str, Any]:
    """The members of a request body; empty if it is not a JSON object."""
    try:
        members_sent = msgspec.json.decode(request.body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return {}
    return members_sent if isinstance(members_sent, dict) else {}


def _retryable(error: HttpError, reason: str, details: dict[str, Any]) -> HttpError:
    headers = error.headers
    if not any(name == b"retry-after" for name, _ in headers):
        headers = (*headers, (b"retry-after", b"%d" % details["retry_after_seconds"]))
    return HttpError(error.status, reason, error.message, details, headers)
