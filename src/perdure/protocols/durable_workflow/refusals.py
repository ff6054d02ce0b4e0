"""Refused completions of workflow tasks: the last reason of each task, and a count.

Kept in the memory of each node and lost when it stops: a worker that repeats a report which cannot
be applied is refused again soon.
"""

from collections import OrderedDict

from msgspec import Struct

from perdure.core.limits import REFUSED_REPORTS_MAX

_MESSAGE_LENGTH_MAX = 300
_LEASE_REASONS = frozenset(
    {
        *("lease_expired", "lease_owner_mismatch", "run_already_closed", "run_closed"),
        *("task_not_found", "task_not_leased", "workflow_task_attempt_mismatch"),
    }
)
"""Refusals because of a lost lease. They are not about the content of the report."""


class Refused(Struct, frozen=True):
    """The last refusal of reports on one task, and how often it occurred in a row."""

    reason: str
    message: str
    count: int
    last_at: int


class Refusals:
    """Refused completions by task id, the latest last."""

    def __init__(self) -> None:
        self._by_task: OrderedDict[str, Refused] = OrderedDict()

    def note(self, task_id: str, reason: str, message: str, at: int) -> None:
        """Count a refused completion. A different reason restarts the count."""
        if reason in _LEASE_REASONS:
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
