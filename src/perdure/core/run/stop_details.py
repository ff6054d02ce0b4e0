"""Details of a closed run for a worker that still works on it."""

from perdure.core.run.state import Run
from perdure.core.run.status import RunStatus

_STOP_REASONS = {
    RunStatus.CANCELLED: "run_cancelled",
    RunStatus.TERMINATED: "run_terminated",
    RunStatus.COMPLETED: "run_completed",
    RunStatus.FAILED: "run_failed",
}


def stop_reason(run: Run) -> str:
    """The reason why work on a closed run has to stop."""
    return _STOP_REASONS.get(run.status, "run_closed")


def was_stopped(run: Run) -> bool:
    """Whether the run was cancelled or terminated."""
    return run.status in (RunStatus.CANCELLED, RunStatus.TERMINATED)


def stop_details(run: Run) -> dict[str, object]:
    """The members of a refusal to a worker."""
    return {
        "stop_reason": stop_reason(run),
        "cancel_requested": was_stopped(run),
        "can_continue": False,
        "run_status": run.status.value,
        "run_closed_reason": run.closed_reason,
        "run_closed_at": run.closed_at,
    }
