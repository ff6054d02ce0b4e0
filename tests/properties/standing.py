"""How a run stands, as whoever plays with it asks."""

from typing import Any

from perdure.core.run.command import (
    OpenConditionWait,
)
from perdure.core.run.inbox import Update
from perdure.core.run.lease import TaskState
from perdure.core.run.operation import Activity, Child, ConditionWait, Operation, SignalWait, Timer
from perdure.core.run.state import WORKFLOW_TASK, Run, TaskKind

KINDS: dict[type[Operation], str] = {
    Activity: "activity",
    Timer: "timer",
    Child: "child",
    ConditionWait: "condition",
    SignalWait: "signal",
}


def ready_places(run: Run) -> list[int]:
    """The tasks of a run that a poller may take."""
    places = [
        sequence
        for sequence, operation in run.operations.items()
        if isinstance(operation, Activity)
        and operation.state is TaskState.READY
        and operation.outcome is None
    ]
    if run.task is not None and run.task.state is TaskState.READY:
        places.append(WORKFLOW_TASK)
    return places


def is_leased(run: Run) -> bool:
    return run.task is not None and run.task.state is TaskState.LEASED


def is_delayed(run: Run) -> bool:
    return run.task is not None and run.task.state is TaskState.DELAYED


def is_asked(run: Run) -> bool:
    """Whether history tells that the run's code was asked to cancel itself."""
    return run.cancellation is not None and run.cancellation.event_id is not None


def calls_of(run: Run) -> list[dict[str, Any]]:
    """Calls at which the code of a run could stand, right and wrong ones."""
    following = run.next_sequence
    calls: list[dict[str, Any]] = [
        {"call_kind": "timer", "sequence": following},
        {"call_kind": "local_activity", "sequence": following},
        {"call_kind": "parallel", "sequence": following, "span": 2},
        {"call_kind": "timer", "sequence": following + 1},
    ]
    for sequence, operation in run.operations.items():
        calls.append({"call_kind": KINDS[type(operation)], "sequence": sequence})
    for group in run.groups.values():
        calls.append({"call_kind": "parallel", "sequence": group.base, "span": group.size})
        for member in group.members:
            call = {"call_kind": "selection_handle", "sequence": following}
            calls.append({**call, "operation": (member.base, member.size)})
    return calls


def is_judged(run: Run) -> bool:
    """Whether the run's task is to validate an update."""
    return run.task is not None and run.task.kind is TaskKind.VALIDATION


def open_updates(run: Run) -> list[Update]:
    waiting = [message for message in run.inbox.values() if isinstance(message, Update)]
    return waiting if run.update is None else [run.update, *waiting]


def asked_again(wait: ConditionWait) -> OpenConditionWait:
    return OpenConditionWait(
        key=wait.key, fingerprint=wait.fingerprint, timeout_seconds=wait.timeout_seconds
    )


def overdue(run: Run, now: int) -> bool:
    """Whether something that only time can end has not been ended in time."""
    if any(
        update.validate_by is not None and update.validate_by <= now for update in open_updates(run)
    ):
        return True
    return any(
        operation.outcome is None and operation.fire_at is not None and operation.fire_at <= now
        for operation in run.operations.values()
        if isinstance(operation, Timer | ConditionWait | SignalWait)
    )
