"""How a closed run describes itself to a worker that still works for it."""

from perdure.core.run.state import Run
from perdure.core.run.status import RunStatus

_STOP_REASONS = {
    RunStatus.CANCELLED: "run_cancelled",
    RunStatus.TERMINATED: "run_terminated",
    RunStatus.COMPLETED: "run_completed",
    RunStatus.FAILED: "run_failed",
}


def stop_reason(run: Run) -> str:
    """Why work for a closed run has to stop."""
    return _STOP_REASONS.get(run.status, "run_closed")


def was_stopped(run: Run) -> bool:
    """Whether somebody closed the run from outside."""
    return run.status in (RunStatus.CANCELLED, RunStatus.TERMINATED)


def stop_details(run: Run) -> dict[str, object]:
    """The members that a refused worker call carries."""
    return {
        "stop_reason": stop_reason(run),
        "cancel_requested": was_stopped(run),
        "can_continue": False,
        "run_status": run.status.value,
        "run_closed_reason": run.closed_reason,
        "run_closed_at": run.closed_at,
    }
