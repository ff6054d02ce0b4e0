"""Operations of workers on workflow tasks."""

from collections.abc import Sequence

from msgspec import Struct

from perdure.core.rejection import Rejection, TaskNotFound
from perdure.core.run.command import Command, StartServiceOperation
from perdure.core.run.completion import NOTHING_READ, TaskReport, complete_task, fail_task
from perdure.core.run.history_budget import HistorySize, history_size
from perdure.core.run.lease import TaskState
from perdure.core.run.message_stream import Consumption
from perdure.core.run.settle import settle
from perdure.core.run.state import Run, TaskReceipt
from perdure.core.run.state_parts import Cancellation
from perdure.core.run.sticky import note_sticky_worker
from perdure.core.run.task import release_task, renew_task, require_lease
from perdure.engine.operation import Operation
from perdure.engine.service_calls import PlannedCall
from perdure.engine.world import World
from perdure.store.interface import RecordKey


class TaskOperation(Operation):
    """A report on a leased workflow task of one namespace."""

    __slots__ = ("_namespace", "_report", "_run_id")

    def __init__(self, namespace: str, run_id: str, report: TaskReport) -> None:
        self._namespace = namespace
        self._run_id = run_id
        self._report = report

    def run_ids(self) -> tuple[str, ...]:
        return (self._run_id,)

    def require_run(self, world: World) -> Run:
        run = world.runs.get(self._run_id)
        if run is None or run.namespace != self._namespace:
            raise self.not_found()
        return run

    def not_found(self) -> Rejection:
        """What is said of a task that this namespace does not have."""
        return TaskNotFound("the workflow task does not exist")


class TaskCompleted(Struct, frozen=True):
    """How a report was taken."""

    run_id: str
    run_status: str
    receipt: TaskReceipt


class CompleteWorkflowTask(TaskOperation):
    """The worker's commands."""

    __slots__ = ("_called", "_commands", "_consumption", "_keeps_for", "names_only_runs")
    name = "complete_workflow_task"

    def __init__(
        self,
        namespace: str,
        run_id: str,
        report: TaskReport,
        commands: Sequence[Command],
        consumption: Consumption | None = None,
        keeps_for: int | None = None,
    ) -> None:
        super().__init__(namespace, run_id, report)
        self._commands = commands
        self._keeps_for = keeps_for
        self._consumption = consumption or NOTHING_READ
        self._called: PlannedCall | None = None
        for command in commands:
            if isinstance(command, StartServiceOperation):
                self._called = PlannedCall(namespace, command)
                break
        self.names_only_runs = self._called is None and not self.reads_before_load

    def records(self) -> tuple[RecordKey, ...]:
        return () if self._called is None else self._called.records()

    def decide(self, world: World) -> TaskCompleted:
        run = self.require_run(world)
        before = run.last_task
        read = self._consumption
        if self._called is None:
            receipt = complete_task(run, world.ctx, self._report, self._commands, read)
        else:
            plan = self._called.plan(world)
            receipt = complete_task(run, world.ctx, self._report, self._commands, read, plan)
            self._called.note(world, run)
        if receipt is not before:
            note_sticky_worker(run, world.ctx, self._report.owner, self._keeps_for)
            world.changed(run)
        return TaskCompleted(run.run_id, str(run.status), receipt)


class FailWorkflowTask(TaskOperation):
    """The worker cannot go on."""

    __slots__ = ("_failure_type", "_message")
    name = "fail_workflow_task"

    def __init__(
        self,
        namespace: str,
        run_id: str,
        report: TaskReport,
        *,
        failure_type: str | None,
        message: str,
    ) -> None:
        super().__init__(namespace, run_id, report)
        self._failure_type = failure_type
        self._message = message

    def decide(self, world: World) -> TaskCompleted:
        run = self.require_run(world)
        before = run.last_task
        receipt = fail_task(
            run,
            world.ctx,
            self._report,
            failure_type=self._failure_type,
            message=self._message,
        )
        if receipt is not before:
            world.changed(run)
        return TaskCompleted(run.run_id, str(run.status), receipt)


class Renewed(Struct, frozen=True):
    """A lease that goes on, and whether its worker's code was asked to cancel meanwhile."""

    lease_expires_at: int
    run_status: str
    cancellation: Cancellation | None = None


class RenewWorkflowTask(TaskOperation):
    """A sign of life of the worker."""

    __slots__ = ("_timeout",)
    name = "renew_workflow_task"

    def __init__(self, namespace: str, run_id: str, report: TaskReport, *, timeout: int) -> None:
        super().__init__(namespace, run_id, report)
        self._timeout = timeout

    def decide(self, world: World) -> Renewed:
        run = self.require_run(world)
        report = self._report
        task = require_lease(
            run, world.ctx, number=report.number, owner=report.owner, attempt=report.attempt
        )
        expires_at = renew_task(run, world.ctx, task, self._timeout)
        world.changed(run)
        # Who did not register for it would take a request for a mistake and drop the task.
        asked = run.cancellation if task.cooperative else None
        return Renewed(expires_at, str(run.status), asked)


class Page(Struct, frozen=True):
    """A part of the frozen history; `events` is None when it must be read from disk."""

    events: list[bytes] | None
    size: HistorySize


class PageWorkflowTask(TaskOperation):
    """A further page of the history that the lease froze."""

    __slots__ = ("_after", "_limit")
    name = "page_workflow_task"

    def __init__(
        self, namespace: str, run_id: str, report: TaskReport, *, after: int, limit: int
    ) -> None:
        super().__init__(namespace, run_id, report)
        self._after = after
        self._limit = limit

    def decide(self, world: World) -> Page:
        run = self.require_run(world)
        report = self._report
        require_lease(
            run, world.ctx, number=report.number, owner=report.owner, attempt=report.attempt
        )
        return page_of(run, after=self._after, limit=self._limit)


def page_of(run: Run, *, after: int, limit: int) -> Page:
    """A page from memory, if memory reaches back that far."""
    first, size = run.events_first, history_size(run)
    if after + 1 < first:
        known = run.opening[after : after + limit]
        return Page(known if len(known) == limit else None, size)
    start = after + 1 - first
    return Page(run.events[start : start + limit], size)


class ReleaseWorkflowTask(Operation):
    """The poll that was to receive this lease is gone: nobody works on it."""

    __slots__ = ("_attempt", "_number", "_owner", "_run_id")
    name = "release_workflow_task"

    def __init__(self, run_id: str, *, number: int, owner: str, attempt: int) -> None:
        self._run_id = run_id
        self._number = number
        self._owner = owner
        self._attempt = attempt

    def run_ids(self) -> tuple[str, ...]:
        return (self._run_id,)

    def decide(self, world: World) -> None:
        run = world.runs.get(self._run_id)
        task = None if run is None else run.task
        if run is None or task is None or task.lease is None or task.state is not TaskState.LEASED:
            return
        if (task.number, task.lease.owner, task.attempt) != (
            self._number,
            self._owner,
            self._attempt,
        ):
            return
        release_task(run, world.ctx)
        settle(run, world.ctx)
        world.changed(run)
