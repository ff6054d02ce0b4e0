"""JSON views of webhooks, and parsing that their routes share."""

from collections.abc import Mapping
from typing import Any

from msgspec import Raw

from perdure.core import instant
from perdure.core.limits import NAME_LENGTH_MAX
from perdure.features.webhooks.operations import Admittance, Endpoint, Received, Source
from perdure.features.webhooks.rules import ATTEMPTS_MAX, Attempt, Delivery
from perdure.protocols.durablex.requests import bad_request
from perdure.web.message import HttpError, Response


def endpoint_view(endpoint: Endpoint) -> dict[str, Any]:
    """An endpoint without its secret."""
    return _present(
        {
            "id": endpoint.id,
            "url": endpoint.url,
            "scheme": endpoint.scheme,
            "eventKinds": endpoint.event_kinds,
            "enabled": endpoint.enabled,
            "createdAt": instant.text(endpoint.created_at),
            "updatedAt": instant.text(endpoint.updated_at),
            "name": endpoint.name,
            "app": endpoint.app,
        }
    )


def source_view(source: Source, receive_url: str) -> dict[str, Any]:
    """A source without its secret, with the names of both protocol versions."""
    return _present(
        {
            "id": source.id,
            "token": source.token,
            "slug": source.token,
            "eventName": source.event_name,
            "event": source.event_name,
            "scheme": source.scheme,
            "enabled": source.enabled,
            "createdAt": instant.text(source.created_at),
            "updatedAt": instant.text(source.updated_at),
            "receiveUrl": receive_url,
            "name": source.name,
            "app": source.app,
            "targetApp": source.target_app,
        }
    )


def delivery_view(delivery: Delivery) -> dict[str, Any]:
    """A delivery without its tries."""
    next_at = delivery.next_at if delivery.status in ("pending", "failed") else None
    return _present(
        {
            "id": delivery.id,
            "app": delivery.app,
            "url": delivery.url,
            "eventKind": delivery.kind,
            "status": delivery.status,
            "attemptCount": delivery.attempt_count,
            "maxAttempts": delivery.tries_before + ATTEMPTS_MAX,
            "createdAt": instant.text(delivery.created_at),
            "updatedAt": instant.text(delivery.updated_at),
            "endpointId": delivery.endpoint_id,
            "sourceRunId": delivery.run_id,
            "payload": Raw(delivery.body),
            "nextAttemptAt": instant.text_or_none(next_at),
            "lastStatusCode": delivery.last_status_code,
        }
    )


def attempt_view(delivery: Delivery, attempt: Attempt) -> dict[str, Any]:
    """One try of a delivery."""
    return _present(
        {
            "id": f"{delivery.id}-{attempt.attempt}",
            "attempt": attempt.attempt,
            "outcome": attempt.outcome,
            "durationMs": attempt.duration_ms,
            "createdAt": instant.text(attempt.created_at),
            "statusCode": attempt.status_code,
            "responseSnippet": attempt.response_snippet,
            "error": attempt.error,
            "requestHeaders": attempt.request_headers or None,
            "responseHeaders": attempt.response_headers or None,
            "redirects": list(attempt.redirects) or None,
        }
    )


def received_view(received: Received) -> dict[str, Any]:
    """A received webhook, without its tries."""
    last = received.attempts[-1]
    return _present(
        {
            "id": received.id,
            "sourceId": received.source_id,
            "eventName": received.event_name,
            "status": last.status,
            "bodySize": received.body_size,
            "attemptCount": received.attempt_count,
            "createdAt": instant.text(received.created_at),
            "updatedAt": instant.text(received.updated_at),
            "app": received.app,
            "failureReason": last.failure_reason,
            "eventId": last.event_id,
            "runId": last.run_id,
        }
    )


def received_detail(received: Received) -> dict[str, Any]:
    """A received webhook, with its tries, headers and body."""
    details = {
        "replayable": received.body is not None,
        "attempts": [_admittance_view(received, one) for one in received.attempts],
        "requestHeaders": received.headers or None,
        "payload": None if received.body is None else Raw(received.body),
    }
    return received_view(received) | _present(details)


def _admittance_view(received: Received, one: Admittance) -> dict[str, Any]:
    return _present(
        {
            "id": f"{received.id}-{one.attempt}",
            "attempt": one.attempt,
            "trigger": one.trigger,
            "status": one.status,
            "createdAt": instant.text(one.created_at),
            "failureReason": one.failure_reason,
            "eventId": one.event_id,
            "runId": one.run_id,
        }
    )


def paged(response: Response, cursor: str | None) -> Response:
    """The response of a page, with the cursor of the next one."""
    if cursor is not None:
        response.headers = (*response.headers, (b"x-next-cursor", cursor.encode()))
    return response


def cursor_of(query: Mapping[str, str]) -> str | None:
    """The key of the last row of the previous page."""
    cursor = query.get("cursor") or None
    if cursor is not None and (len(cursor) != 26 or not cursor.isalnum() or not cursor.isascii()):
        raise bad_request("cursor was not issued by this server")
    return cursor


def short(text: str | None, field: str) -> str | None:
    """A name within its length bound, or none."""
    if text is not None and len(text) > NAME_LENGTH_MAX:
        raise bad_request(f"{field} has more than {NAME_LENGTH_MAX} characters")
    return text or None


def not_found(what: str, key: str) -> HttpError:
    return HttpError(404, "webhook_not_found", f"there is no webhook {what} {key[:64]}")


def _present(view: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in view.items() if value is not None}
