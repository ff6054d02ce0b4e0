"""The three families of routes: control plane, worker plane, discovery."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec

from perdure.clock import Clock
from perdure.core import instant
from perdure.core.limits import INBOX_RETRY_AFTER_SECONDS
from perdure.core.rejection import InboxFull, Rejection
from perdure.protocols.durable_workflow.backpressure import in_retry_form, refused_report
from perdure.protocols.durable_workflow.manifests import (
    CONTROL_PLANE_VERSION,
    WORKER_PROTOCOL_MINOR,
    WORKER_PROTOCOL_VERSION,
)
from perdure.protocols.durable_workflow.reasons import STATUS_BY_REJECTION
from perdure.protocols.durable_workflow.refusals import Refusals
from perdure.protocols.durable_workflow.response_contract import (
    BLOCK_SCHEMA,
    PROJECTED_FIELDS,
    name_field,
    terms_of,
)
from perdure.store.interface import Unavailable
from perdure.web.message import HttpError, Request, Response

encode = msgspec.json.encode

_COMMANDS = frozenset(
    {"start", "signal", "update", "cancel", "terminate", "request_cancellation", "redrive"}
)
"""Operations whose refusals carry the members of a command."""

CONTROL_HEADER = b"x-durable-workflow-control-plane-version"
WORKER_HEADER = b"x-durable-workflow-protocol-version"


def translate(error: Exception) -> HttpError | None:
    """The error response of a refusal by rules or store; None for an unexpected error."""
    if isinstance(error, Rejection):
        status = STATUS_BY_REJECTION[type(error)]
        details = error.details
        headers: tuple[tuple[bytes, bytes], ...] = ()
        if isinstance(error, InboxFull):
            seconds = INBOX_RETRY_AFTER_SECONDS
            details = {**details, "retryable": True, "retry_after_seconds": seconds}
            headers = ((b"retry-after", b"%d" % seconds),)
        return HttpError(status, error.reason, error.message, _wire(details), headers)
    if isinstance(error, Unavailable):
        seconds = error.retry_after_seconds
        return HttpError(
            503,
            error.reason,
            error.message,
            {"retryable": True, "retry_after_seconds": seconds},
            ((b"retry-after", b"%d" % seconds),),
        )
    return None


def _wire(details: dict[str, object]) -> dict[str, Any]:
    """The details with instants formatted as text."""
    return {
        key: instant.text(value) if key.endswith("_at") and isinstance(value, int) else value
        for key, value in details.items()
    }


_REPORT_STATUSES = (400, 409, 413, 422)
"""Statuses of reports that are refused for their content."""


class Namespaces:
    """The known namespaces, and the resolution of a request to one of them."""

    def __init__(self, default: str) -> None:
        self.default = default
        self.known: set[str] = set()

    def resolve(self, request: Request) -> str:
        named = request.headers.get(b"x-namespace")
        namespace = "" if named is None else _folded(named)
        if not namespace:
            requested = request.query.get("namespace") if request.query_string else None
            namespace = (requested or self.default).lower()
        if namespace not in self.known:
            raise HttpError(
                404,
                "namespace_not_found",
                f"namespace {namespace[:128]} does not exist",
                {"namespace": namespace[:128], "remediation": "create it, or name another one"},
            )
        return namespace


@lru_cache(maxsize=256)
def _folded(named: bytes) -> str:
    return named.decode("latin-1").strip().lower()


class ControlSurface:
    """Requests of clients and operators. Workflow routes name their operation in every answer."""

    _HEADERS = ((CONTROL_HEADER, CONTROL_PLANE_VERSION.encode()),)

    def __init__(self, namespaces: Namespaces, operation: str | None = None) -> None:
        self._namespaces = namespaces
        self._operation = operation
        self._terms = None if operation is None else terms_of(operation)
        self._name_field = None if operation is None else name_field(operation)

    def of(self, operation: str) -> "ControlSurface":
        """The same surface for one operation on workflows."""
        return ControlSurface(self._namespaces, operation)

    def admit(self, request: Request) -> None:
        requested = request.header(CONTROL_HEADER)
        if requested != CONTROL_PLANE_VERSION:
            kind = "missing" if requested is None else "unsupported"
            raise HttpError(
                400,
                f"{kind}_control_plane_version",
                f"send {CONTROL_HEADER.decode()}: {CONTROL_PLANE_VERSION}",
                {
                    "supported_version": CONTROL_PLANE_VERSION,
                    "requested_version": requested,
                    "remediation": "use a client of control plane version 2",
                },
            )
        request.namespace = self._namespaces.resolve(request)

    def answer(self, request: Request, status: int, body: dict[str, Any]) -> Response:
        """A successful answer with the block of the operation."""
        return Response(status, encode(self._with_block(request, body)), self._HEADERS)

    def refuse(self, request: Request, error: HttpError) -> Response:
        body = {"message": error.message, "reason": error.reason, **error.details}
        if "errors" in body:
            body["validation_errors"] = body["errors"]
        if self._operation is not None:
            for name in ("workflow_id", "run_id"):
                if name in request.params:
                    body.setdefault(name, request.params[name])
            if "rejection_reason" in body and self._operation in _COMMANDS:
                body = {**self._refused_command(request), **body}
        return Response(
            error.status, encode(self._with_block(request, body)), (*self._HEADERS, *error.headers)
        )

    def _refused_command(self, request: Request) -> dict[str, Any]:
        """Members of a refused command, as an accepted one has them."""
        members = {
            "command_status": "rejected",
            "command_source": "control_plane",
            "target_scope": "run" if "run_id" in request.params else "instance",
        }
        return members | ({self._name_field: request.params["name"]} if self._name_field else {})

    def _with_block(self, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        operation = self._operation
        if operation is None:
            return body
        workflow_id = body.get("workflow_id", request.params.get("workflow_id"))
        block: dict[str, Any] = {
            "schema": BLOCK_SCHEMA,
            "version": 1,
            "operation": operation,
            "workflow_id": workflow_id,
        }
        if self._name_field is not None:
            block["operation_name"] = request.params.get("name")
            block["operation_name_field"] = self._name_field
        if self._terms is not None:
            block["contract"] = self._terms
        for name in PROJECTED_FIELDS:
            if name in body:
                block[name] = body[name]
        return {**body, "control_plane": block}


class WorkerSurface:
    """Requests of workers. Every answer carries protocol version and server capabilities."""

    _HEADERS = ((WORKER_HEADER, WORKER_PROTOCOL_VERSION.encode()),)

    def __init__(
        self,
        namespaces: Namespaces,
        capabilities: Callable[[], dict[str, Any]],
        clock: Clock,
        refusals: Refusals,
    ) -> None:
        self._namespaces = namespaces
        self._clock = clock
        self._refusals = refusals
        envelope = {
            "protocol_version": WORKER_PROTOCOL_VERSION,
            "server_capabilities": capabilities(),
        }
        self._tail = b"," + encode(envelope)[1:]

    def admit(self, request: Request) -> None:
        headers = request.headers
        namespace = _named(headers.get(WORKER_HEADER), headers.get(b"x-namespace"))
        if namespace in self._namespaces.known:
            request.namespace = namespace
        else:
            self._admit_checked(request)

    def _admit_checked(self, request: Request) -> None:
        if not _is_supported(request.headers.get(WORKER_HEADER)):
            requested = request.header(WORKER_HEADER)
            kind = "missing" if requested is None else "unsupported"
            message = f"this server supports worker protocol 1.0 to {WORKER_PROTOCOL_VERSION}"
            raise HttpError(
                400,
                f"{kind}_protocol_version",
                message,
                {
                    "supported_version": WORKER_PROTOCOL_VERSION,
                    "requested_version": requested,
                    "remediation": message,
                },
            )
        request.namespace = self._namespaces.resolve(request)

    def answer(self, status: int, body: dict[str, Any]) -> Response:
        return self.splice(status, encode(body))

    def splice(self, status: int, body: bytes) -> Response:
        """An answer of encoded members, with those of the envelope appended."""
        return Response(status, body[:-1], self._HEADERS, tail=self._tail)

    def refuse(self, request: Request, error: HttpError) -> Response:
        if error.status in (429, 503):
            error = in_retry_form(request, error)
        body = {
            "error": error.message,
            "message": error.message,
            "reason": error.reason,
            **error.details,
        }
        if "errors" in body:
            body["validation_errors"] = body["errors"]
        if "task_id" in request.params:
            self._note(request, error)
            body = {"task_id": request.params["task_id"], **refused_report(request, error), **body}
        response = self.answer(error.status, body)
        response.headers = (*self._HEADERS, *error.headers)
        return response

    def _note(self, request: Request, error: HttpError) -> None:
        """Count a refused completion, so that `describe` can show why a run does not progress."""
        if error.status in _REPORT_STATUSES and request.path.endswith(b"/complete"):
            task_id = request.params["task_id"]
            self._refusals.note(task_id, error.reason, error.message, self._clock.now())


@lru_cache(maxsize=256)
def _named(requested: bytes | None, named: bytes | None) -> str:
    """The namespace in the header if the version is supported; otherwise empty."""
    return _folded(named) if named is not None and _is_supported(requested) else ""


@lru_cache(maxsize=64)
def _is_supported(requested: bytes | None) -> bool:
    major, dot, minor = (requested or b"").strip().partition(b".")
    if major != b"1" or not dot or not minor.isascii() or not minor.isdigit() or len(minor) > 4:
        return False
    return int(minor) <= WORKER_PROTOCOL_MINOR


def protocol_minor(request: Request) -> int:
    """The minor version of the worker protocol of an admitted request."""
    return _minor(request.headers.get(WORKER_HEADER) or b"")


@lru_cache(maxsize=64)
def _minor(requested: bytes) -> int:
    return int(requested.strip().partition(b".")[2])


class DiscoverySurface:
    """Health, readiness and cluster info: no version, no namespace needed."""

    def __init__(self, namespaces: Namespaces) -> None:
        self._namespaces = namespaces

    def admit(self, request: Request) -> None:
        request.namespace = (request.header(b"x-namespace") or self._namespaces.default).lower()

    def answer(self, status: int, body: dict[str, Any]) -> Response:
        return Response(status, encode(body))

    def refuse(self, request: Request, error: HttpError) -> Response:
        body = {"message": error.message, "reason": error.reason, **error.details}
        return Response(error.status, encode(body), error.headers)
