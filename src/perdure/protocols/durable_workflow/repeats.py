"""Repeated reports on activity attempts: finds the recorded outcome in the run's history."""

import msgspec
from msgspec import Struct

from perdure.core.limits import HISTORY_READ_MAX
from perdure.engine.activity_tasks import AttemptRef
from perdure.store.interface import Store


class _Payload(Struct):
    activity_attempt_id: str | None = None
    timeout_kind: str | None = None
    message: str | None = None


class _Event(Struct):
    event_type: str
    payload: _Payload


_decoder = msgspec.json.Decoder(_Event)
_payload_decoder = msgspec.json.Decoder(_Payload)

_OUTCOMES = {
    "ActivityCompleted": "completed",
    "ActivityFailed": "failed",
    "ActivityTimedOut": "failed",
    "ActivityRetryScheduled": "failed",
}


async def find_recorded_outcome(store: Store, ref: AttemptRef, message: str | None) -> str | None:
    """`completed`, `failed` or None. Slow; only called for a report that was refused.

    `message` is that of a reported failure. A time-out matches only with this message: most
    time-outs come from the server, and then the report was not accepted.
    """
    run = await store.read_run(ref.run_id)
    if run is None or run.namespace != ref.namespace:
        return None
    operation = run.operations.get(ref.sequence)
    if operation is not None:
        # Outcomes that are held while a worker replays count, too: they are decided.
        for decided in (*operation.held, operation.outcome):
            if decided is None or decided.event_type not in _OUTCOMES:
                continue
            if _is_outcome_of(_payload_decoder.decode(decided.payload), ref, message):
                return _OUTCOMES[decided.event_type]
    for encoded in await store.read_history(ref.run_id, 0, HISTORY_READ_MAX):
        if ref.attempt_id.encode() not in encoded:
            continue
        event = _decoder.decode(encoded)
        if event.event_type in _OUTCOMES and _is_outcome_of(event.payload, ref, message):
            return _OUTCOMES[event.event_type]
    return None


def _is_outcome_of(payload: _Payload, ref: AttemptRef, message: str | None) -> bool:
    if payload.activity_attempt_id != ref.attempt_id:
        return False
    return payload.timeout_kind is None or payload.message == message
