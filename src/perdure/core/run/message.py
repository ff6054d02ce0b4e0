"""Commands from outside: signals wait their turn in the inbox, cancel and terminate do not."""

from perdure.core import limits
from perdure.core.rejection import RunNotActive, StructuralLimitExceeded
from perdure.core.run.history import encode, encode_event
from perdure.core.run.moment import Moment
from perdure.core.run.settle import settle, signal_members
from perdure.core.run.state import Run, Signal


def require_active(run: Run) -> None:
    """Refuse commands to a closed run."""
    if run.is_closed:
        raise RunNotActive(
            f"run {run.run_id} is {run.status}",
            run_id=run.run_id,
            outcome="rejected_not_active",
            rejection_reason="run_not_active",
        )


def accept_signal(run: Run, moment: Moment, *, name: str, arguments: bytes | None) -> Signal:
    """Take a signal. It is durable from now on and enters history in its turn."""
    require_active(run)
    waiting = len(run.inbox) + len(run.unapplied)
    if waiting >= limits.PENDING_SIGNALS_MAX:
        raise StructuralLimitExceeded(
            f"run {run.run_id} has {waiting} signals waiting",
            limit_kind="pending_signal_count",
            configured_limit=limits.PENDING_SIGNALS_MAX,
        )
    signal = Signal(
        signal_id=moment.ids.ulid(),
        command_id=moment.ids.ulid(),
        name=name,
        arguments=arguments,
        received_at=moment.now,
    )
    run.inbox[run.inbox_next] = signal
    run.unsaved.inbox.add(run.inbox_next)
    run.inbox_next += 1
    settle(run, moment)
    return signal


def show_waiting_signals(run: Run) -> list[bytes]:
    """The signals that wait in the inbox, as the events that history will have of them.

    For questions only: who has sent a signal and then asks shall be answered by code that has
    seen it. What they are is settled when they enter history.
    """
    if run.is_closed:
        return []
    shown = []
    for sequence, (_, signal) in enumerate(sorted(run.inbox.items()), start=run.history_count + 1):
        members = {k: v for k, v in signal_members(run, signal).items() if v is not None}
        at, payload = signal.received_at, encode(members)
        shown.append(encode_event(run, sequence, signal.signal_id, "SignalReceived", at, payload))
    return shown
