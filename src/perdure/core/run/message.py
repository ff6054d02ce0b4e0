"""Commands from outside: signals wait their turn in the inbox, cancel and terminate do not."""

from perdure.core import limits
from perdure.core.rejection import RunNotActive, StructuralLimitExceeded
from perdure.core.run.moment import Moment
from perdure.core.run.settle import settle
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
