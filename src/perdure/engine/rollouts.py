"""What operators want of builds, held in memory: every poll and every start asks.

On disk there is one record per queue; see `draining`. What is here is what this node has heard.
"""

from collections.abc import Callable, Collection, Iterable

from perdure.core.fleet.rollout import EMPTY_ROLLOUT, Rollout
from perdure.core.fleet.worker import Cohort
from perdure.core.limits import ROLLOUT_QUEUES_MAX
from perdure.core.rejection import StructuralLimitExceeded

QueueName = tuple[str, str]
"""A namespace, and a queue in it."""


class Rollouts:
    """The rollouts of all queues that have one."""

    def __init__(self) -> None:
        self._known: dict[QueueName, Rollout] = {}
        self.draining: set[Cohort] = set()
        """Whoever asks often keeps this very set."""
        self._on_drained: Callable[[Collection[Cohort]], None] = lambda cohorts: None

    def connect(self, tell: Callable[[Collection[Cohort]], None]) -> None:
        """Say who lets workers go that shall get nothing more."""
        self._on_drained = tell

    def __bool__(self) -> bool:
        return bool(self._known)

    @property
    def queues(self) -> Iterable[QueueName]:
        return self._known.keys()

    def find(self, namespace: str, queue: str) -> Rollout:
        return self._known.get((namespace, queue), EMPTY_ROLLOUT)

    def require_room(self, name: QueueName) -> None:
        """All of them are held in memory, so there is an end to them."""
        if name not in self._known and len(self._known) >= ROLLOUT_QUEUES_MAX:
            raise StructuralLimitExceeded(
                f"{ROLLOUT_QUEUES_MAX} queues have builds that are drained or promoted",
                limit_kind="rollout_queue_count",
                configured_limit=ROLLOUT_QUEUES_MAX,
            )

    def put(self, name: QueueName, rollout: Rollout) -> None:
        """Take in what is wanted now."""
        before = {Cohort(*name, build) for build in self.find(*name).draining}
        after = {Cohort(*name, build) for build in rollout.draining}
        if rollout.intents:
            self._known[name] = rollout
        else:
            self._known.pop(name, None)
        self.draining -= before - after
        self.draining |= after
        if after - before:
            self._on_drained(after - before)
