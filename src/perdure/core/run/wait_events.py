"""Payloads of the events of waits."""

from typing import Any

from perdure.core import instant
from perdure.core.run.history import Members, with_metadata
from perdure.core.run.operation import ConditionWait, SignalWait


def opening(wait: ConditionWait) -> Members:
    """The payload of `ConditionWaitOpened`."""
    return with_metadata({**condition(wait), "timeout_seconds": wait.timeout_seconds}, wait)


def timeout_timer(wait: ConditionWait | SignalWait) -> dict[str, Any]:
    """The timer of a wait, as in its events."""
    timer = {
        "sequence": wait.sequence,
        "timer_id": wait.timer_id,
        "delay_seconds": wait.timeout_seconds,
        "fire_at": instant.text_or_none(wait.fire_at),
    }
    if isinstance(wait, ConditionWait):
        return {
            **timer,
            "timer_kind": "condition_timeout",
            "condition_wait_id": wait.wait_id,
            "condition_key": wait.key,
            "condition_definition_fingerprint": wait.fingerprint,
        }
    return {
        **timer,
        "timer_kind": "signal_timeout",
        "signal_wait_id": wait.wait_id,
        "signal_name": wait.signal_name,
    }


def messages_taken(wait: ConditionWait, cancelled_at: str) -> dict[str, Any]:
    """Binds all messages after an opening to it, although the condition is opened again.

    A worker delivers all but the first of them to the next opening, unless the time-out of this one
    ends before that. The event has no sequence, so it ends no call of the code.
    """
    return {
        "timer_kind": "condition_timeout",
        "timer_id": wait.timer_id,
        "condition_wait_id": wait.wait_id,
        "cancelled_at": cancelled_at,
    }


def condition(wait: ConditionWait) -> dict[str, Any]:
    """The members that identify a condition."""
    return {
        "sequence": wait.sequence,
        "condition_wait_id": wait.wait_id,
        "condition_key": wait.key,
        "condition_definition_fingerprint": wait.fingerprint,
    }
