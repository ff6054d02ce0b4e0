"""Leasing tasks to pollers: new ones before they are written, waiting ones when somebody asks."""

from perdure.core.fleet.contract import (
    declared_validators,
    is_cooperative,
    keeps_histories,
    prepares_local_activities,
)
from perdure.core.fleet.quota import Allowances, Quota
from perdure.core.limits import PASS_LEASE_TIMEOUT, UPDATE_VALIDATION_LEASE_TIMEOUT
from perdure.core.run.activity import lease_activity
from perdure.core.run.lease import READY
from perdure.core.run.operation import Activity
from perdure.core.run.standalone import fit_arguments
from perdure.core.run.state import TASK_KINDS, VALIDATION, WORKFLOW_TASK, Dialect, Run
from perdure.core.run.sticky import find_sticky_worker, replay_mode
from perdure.core.run.task import activity_place, lease_task, task_name
from perdure.engine.matching import Grant, Matcher, Poller
from perdure.engine.world import World
from perdure.store.interface import QueueKey, queue_key


class Leasing:
    """Knows how long leases last, and how many there may be."""

    def __init__(
        self,
        *,
        workflow_timeout: int,
        activity_timeout: int,
        allowances: Allowances | None = None,
    ) -> None:
        self._allowances = allowances
        self.workflow_timeout = workflow_timeout
        self.activity_timeout = activity_timeout
        self._timeouts = {
            Dialect.PULL: workflow_timeout,
            Dialect.PUSH: PASS_LEASE_TIMEOUT,
        }

    def quotas(self, key: QueueKey) -> tuple[Quota, ...]:
        """What every lease of a queue has to go through; see `allowing`."""
        return () if self._allowances is None else self._allowances.quotas(*key)

    def match(self, world: World, matcher: Matcher) -> None:
        """Let the tasks that became ready in this beat meet parked pollers.

        Those of queues with quotas wait to be claimed.
        """
        allowances = self._allowances
        for run in list(world.touched.values()):
            if not run.unsaved.ready:
                continue
            for place, key, name in ready_tasks(run):
                if allowances is not None and allowances.quotas(*key):
                    continue
                wanted = find_sticky_worker(run, world.ctx.now) if place == WORKFLOW_TASK else None
                poller = matcher.reserve(key, name, wanted) or matcher.reserve_elsewhere(key, name)
                if poller is not None:
                    self.grant(world, run, place, poller)

    def grant(self, world: World, run: Run, place: int, poller: Poller) -> None:
        """Lease one ready task to one poller."""
        worker = poller.worker
        if place == WORKFLOW_TASK:
            task = lease_task(
                run,
                world.ctx,
                owner=worker.worker_id,
                timeout=self._task_timeout(run),
                frame=None if run.plain_input is None else worker.frame,
                runtime=worker.runtime,
                poll_id=poller.poll_id,
                validators=declared_validators(worker, run.workflow_type),
                cooperative=is_cooperative(worker),
                prepares=prepares_local_activities(worker),
                replay_mode=(
                    replay_mode(run, world.ctx.now, worker.worker_id)
                    if keeps_histories(worker)
                    else None
                ),
            )
            lease = task.lease
        else:
            activity = run.operations[place]
            assert isinstance(activity, Activity)
            if run.plain_input is not None:
                fit_arguments(run, activity, worker.frame)
            lease_activity(
                run,
                world.ctx,
                activity,
                owner=worker.worker_id,
                timeout=self.activity_timeout,
                poll_id=poller.poll_id,
            )
            lease = activity.lease
        assert lease is not None
        world.grants.append(Grant(poller, run, place, lease))
        world.changed(run)

    def _task_timeout(self, run: Run) -> int:
        """Somebody waits for the word of a validator, so it is given less time."""
        usual = self._timeouts[run.dialect]
        if run.task is None or run.task.kind is not VALIDATION:
            return usual
        return min(usual, UPDATE_VALIDATION_LEASE_TIMEOUT)


def still_holds(grant: Grant) -> bool:
    """Whether the lease outlived its beat; a cancel behind it may have ended the run."""
    if grant.place == WORKFLOW_TASK:
        task = grant.run.task
        return task is not None and task.lease is grant.lease
    activity = grant.run.operations.get(grant.place)
    return isinstance(activity, Activity) and activity.lease is grant.lease


def ready_tasks(run: Run) -> list[tuple[int, QueueKey, str]]:
    """The tasks of a run that became ready: their place, where they wait, and their name."""
    found = []
    for place, is_ready in run.unsaved.ready.items():
        if not is_ready:
            continue
        if place == WORKFLOW_TASK:
            key = queue_key(run.namespace, run.queue, TASK_KINDS[run.dialect])
            found.append((place, key, task_name(run)))
            continue
        activity = run.operations.get(place)
        if isinstance(activity, Activity):
            kind, name = activity_place(run, activity)
            found.append((place, queue_key(run.namespace, activity.queue, kind), name))
    return found


def is_ready(run: Run, place: int) -> bool:
    """Whether a task that the disk calls ready still is."""
    if place == WORKFLOW_TASK:
        return run.task is not None and run.task.state is READY
    activity = run.operations.get(place)
    return isinstance(activity, Activity) and activity.state is READY
