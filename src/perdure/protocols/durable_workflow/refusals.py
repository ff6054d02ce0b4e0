"""Reports on workflow tasks that were refused again and again: what was refused, and how often.

Kept by each node for itself and forgotten with it; a run whose worker repeats what cannot be
applied is refused anew soon enough.
"""

from collections import OrderedDict

from msgspec import Struct

from perdure.core.limits import REFUSED_REPORTS_MAX

_MESSAGE_LENGTH_MAX = 300
_OF_LEASES = frozenset(
    {
        *("lease_expired", "lease_owner_mismatch", "run_already_closed", "run_closed"),
        *("task_not_found", "task_not_leased", "workflow_task_attempt_mismatch"),
    }
)
"""Refusals of whoever came too late. They say nothing of what was reported."""


class Refused(Struct, frozen=True):
    """What was said against the reports on one task."""

    reason: str
    message: str
    count: int
    last_at: int


class Refusals:
    """The refused completions of workflow tasks, by the id of the task, the latest last."""

    def __init__(self) -> None:
        self._by_task: OrderedDict[str, Refused] = OrderedDict()

    def note(self, task_id: str, reason: str, message: str, at: int) -> None:
        """A completion was refused; another rule begins to count anew."""
        if reason in _OF_LEASES:
            return
        message = message[:_MESSAGE_LENGTH_MAX]
        known = self._by_task.get(task_id)
        count = known.count + 1 if known is not None and known.reason == reason else 1
        self._by_task[task_id] = Refused(reason, message, count, at)
        self._by_task.move_to_end(task_id)
        while len(self._by_task) > REFUSED_REPORTS_MAX:
            self._by_task.popitem(last=False)

    def find(self, task_id: str) -> Refused | None:
        return self._by_task.get(task_id)
