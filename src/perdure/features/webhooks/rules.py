"""Rules of outgoing webhooks: what is sent, how often it is tried, what is stored of each try.

A delivery is one record, due at `due_at`. `begin` starts a try in the beat that counts it, so that
a try during which a node dies counts; `conclude` stores its result. A success ends the delivery. A
temporary error is retried on the schedule (`failed`) until the tries are used up (`exhausted`); a
permanent one ends it (`dead`). `redeliver` starts again.
"""

from typing import Literal

import msgspec
from msgspec import Struct

from perdure.core import instant, limits

Status = Literal["pending", "delivering", "succeeded", "failed", "exhausted", "dead"]
Outcome = Literal["succeeded", "http_error", "timeout", "connection_error", "skipped"]
Kind = Literal["run.succeeded", "run.failed", "run.cancelled", "step.failed", "custom"]
SUBSCRIBABLE: tuple[Kind, ...] = ("run.succeeded", "run.failed", "run.cancelled", "step.failed")
STATUSES: tuple[Status, ...] = (
    *("pending", "delivering", "succeeded", "failed", "exhausted", "dead"),
)
DELAYS = tuple(seconds * limits.SECOND for seconds in (5, 30, 120, 600, 3_600, 21_600))
ATTEMPTS_MAX = len(DELAYS) + 1

_TEMPORARY = frozenset({408, 429})


class Attempt(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One try."""

    attempt: int
    outcome: Outcome
    created_at: int
    duration_ms: int
    status_code: int | None = None
    response_snippet: str | None = None
    error: str | None = None
    request_headers: dict[str, str] = {}
    response_headers: dict[str, str] = {}
    redirects: tuple[str, ...] = ()
    """The URLs that it was redirected to, in order."""


class Delivery(Struct, frozen=True, kw_only=True):
    """One message to one address."""

    id: str
    app: str
    url: str
    kind: Kind
    body: bytes
    created_at: int
    updated_at: int
    endpoint_id: str | None = None
    """The endpoint whose secret signs it; without one it is sent unsigned."""
    run_id: str | None = None
    status: Status = "pending"
    next_at: int | None = None
    """The next try, or the timeout of the try in progress."""
    attempt_count: int = 0
    tries_before: int = 0
    """Tries that do not count, because the delivery was restarted after them."""
    last_status_code: int | None = None
    attempts: tuple[Attempt, ...] = ()
    """The latest tries, oldest first."""

    @property
    def due_at(self) -> int | None:
        return self.next_at

    @property
    def is_settled(self) -> bool:
        return self.status in ("succeeded", "exhausted", "dead")


def opened(
    delivery_id: str,
    *,
    app: str,
    url: str,
    kind: Kind,
    body: bytes,
    now: int,
    endpoint_id: str | None = None,
    run_id: str | None = None,
) -> Delivery:
    """A new delivery, due at once."""
    return Delivery(
        id=delivery_id,
        app=app,
        url=url,
        kind=kind,
        body=body,
        created_at=now,
        updated_at=now,
        endpoint_id=endpoint_id,
        run_id=run_id,
        next_at=now,
    )


def message(delivery_id: str, kind: Kind, data: bytes, created_at: int) -> bytes:
    """The body of a notification. A custom webhook has the body that its step gave."""
    body = {
        "id": delivery_id,
        "type": kind,
        "createdAt": instant.text(created_at),
        "data": msgspec.Raw(data),
    }
    return msgspec.json.encode(body)


def headers_of(delivery: Delivery) -> dict[str, str]:
    """The headers of every try, besides its signature."""
    return {
        "Content-Type": "application/json",
        "User-Agent": "perdure",
        "X-Durablex-Delivery": delivery.id,
        "X-Durablex-Event": delivery.kind,
    }


def begin(delivery: Delivery, now: int) -> Delivery | None:
    """The delivery with one more try in progress; none when it is not due.

    A try without a result in time is stored as a timeout, and the schedule continues.
    """
    if delivery.next_at is None or delivery.is_settled or now < delivery.next_at:
        return None
    if delivery.status == "delivering":
        lost = Attempt(
            attempt=delivery.attempt_count,
            outcome="timeout",
            created_at=delivery.updated_at,
            duration_ms=(now - delivery.updated_at) // 1_000,
            error="the server stopped during this try",
        )
        delivery = conclude(delivery, lost, now)
        if delivery.next_at is None or now < delivery.next_at:
            return delivery
    return msgspec.structs.replace(
        delivery,
        status="delivering",
        attempt_count=delivery.attempt_count + 1,
        next_at=now + limits.DELIVERY_LEASE_TIMEOUT,
        updated_at=now,
    )


def conclude(delivery: Delivery, attempt: Attempt, now: int) -> Delivery:
    """The delivery after a try. The result of a try that is not the current one is ignored."""
    if delivery.status != "delivering" or attempt.attempt != delivery.attempt_count:
        return delivery
    status, next_at = _after(delivery, attempt, now)
    return msgspec.structs.replace(
        delivery,
        status=status,
        next_at=next_at,
        updated_at=now,
        last_status_code=attempt.status_code,
        attempts=(*delivery.attempts, attempt)[-limits.DELIVERY_ATTEMPTS_KEPT :],
    )


def redeliver(delivery: Delivery, now: int) -> Delivery:
    """The delivery, due at once with all tries available. A try in progress continues."""
    if delivery.status == "delivering":
        return delivery
    return msgspec.structs.replace(
        delivery,
        status="pending",
        next_at=now,
        updated_at=now,
        tries_before=delivery.attempt_count,
    )


def _after(delivery: Delivery, attempt: Attempt, now: int) -> tuple[Status, int | None]:
    if attempt.outcome == "succeeded":
        return "succeeded", None
    if attempt.outcome == "skipped" or not _is_temporary(attempt):
        return "dead", None
    tries = delivery.attempt_count - delivery.tries_before
    if tries >= ATTEMPTS_MAX:
        return "exhausted", None
    return "failed", now + DELAYS[tries - 1]


def _is_temporary(attempt: Attempt) -> bool:
    code = attempt.status_code
    return attempt.outcome != "http_error" or (
        code is not None and (code in _TEMPORARY or code >= 500)
    )
