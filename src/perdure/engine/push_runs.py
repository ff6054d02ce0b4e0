"""Operations of push runs: answers of runners, calls among runs, and what follows an end."""

from perdure.core.limits import CALL_DEPTH_MAX, PIN_GRACE
from perdure.core.push.apply_pass import apply_pass, error_of, fail
from perdure.core.push.command import PassReply, StepError
from perdure.core.push.effect import Called, Ended, Pinned
from perdure.core.push.start import PushStart, event_arguments, start_push_run
from perdure.core.push.step import NULL, complete_step, fail_step, push_of
from perdure.core.push.usage_check import unhindered
from perdure.core.run.completion import TaskReport
from perdure.core.run.context import Context
from perdure.core.run.history import encode
from perdure.core.run.operation import PushStep
from perdure.core.run.state import Parent, Run
from perdure.core.run.status import RunStatus
from perdure.engine.admission import FLOW, ReleaseSingleton, limits_of, step_retry
from perdure.engine.catalogue import Definition
from perdure.engine.finished_event import raise_finished
from perdure.engine.fleet import LeaseRecovery
from perdure.engine.operation import Operation
from perdure.engine.registration import RUNNER, link_key, open_book
from perdure.engine.usage_limits import RecordUse
from perdure.engine.workflow_tasks import TaskOperation
from perdure.engine.world import World
from perdure.store.interface import RecordKey, RecordRange, Store


class ApplyPass(TaskOperation):
    """What a runner answered to one pass."""

    __slots__ = ("_executed_by", "_reply", "_waits_out_backoffs")
    name = "apply_pass"

    def __init__(
        self,
        namespace: str,
        run_id: str,
        report: TaskReport,
        reply: PassReply,
        *,
        executed_by: str,
        waits_out_backoffs: bool,
    ) -> None:
        super().__init__(namespace, run_id, report)
        self._reply = reply
        self._executed_by = executed_by
        self._waits_out_backoffs = waits_out_backoffs

    def decide(self, world: World) -> None:
        run = self.require_run(world)
        before = run.last_task
        receipt = apply_pass(
            run,
            world.ctx,
            self._report,
            self._reply,
            executed_by=self._executed_by,
            waits_out_backoffs=self._waits_out_backoffs,
        )
        if receipt is not before:
            world.changed(run)


class ReleasePasses(LeaseRecovery):
    """Who held these passes is gone, and nobody will ever answer them."""

    __slots__ = ()
    name = "release_passes"

    def decide(self, world: World) -> int:
        return self.release_leases(world)


class RequirePinned(Operation):
    """A run that is pinned to a runner that is not there fails: its caller is mistaken.

    If that runner had taken passes of it before, it may come back within a grace.
    """

    __slots__ = ("_links", "_run")
    name = "require_pinned"
    reads_before_load = True

    def __init__(self, pinned: Pinned) -> None:
        self._run = pinned.run
        self._links: tuple[RecordKey, ...] = ()

    async def prepare(self, store: Store, world: World) -> tuple[str, ...]:
        run = self._run
        wanted = RecordRange(
            kind=RUNNER.name,
            namespace=run.namespace,
            prefix=link_key(run.queue, push_of(run).pin, ""),
            limit=_LINKS_MAX,
        )
        self._links = tuple(await store.find_record_keys(wanted))
        return ()

    def records(self) -> tuple[RecordKey, ...]:
        return self._links

    def decide(self, world: World) -> None:
        run = self._run
        known = (RUNNER.find(world, run.namespace, link.key) for link in self._links)
        found = [link for link in known if link is not None]
        if run.is_closed or any(link.is_live for link in found):
            return
        seen_at = max((link.seen_at for link in found), default=0)
        if push_of(run).executed_by is not None and world.ctx.now - seen_at < PIN_GRACE:
            return
        error = error_of(f"runner {push_of(run).pin} of app {run.queue} is not registered")
        fail(run, world.ctx, error)
        world.changed(run)


_LINKS_MAX = 64
"""How many ways to one runner are looked at."""


class StartCalled(Operation):
    """A step of a run calls a workflow: its child starts, or the step learns why not."""

    __slots__ = ("_called", "_definition")
    name = "start_called"
    reads_before_load = True

    def __init__(self, called: Called) -> None:
        self._called = called
        self._definition: Definition | None = None

    def run_ids(self) -> tuple[str, ...]:
        return (self._called.run.run_id,)

    async def prepare(self, store: Store, world: World) -> tuple[str, ...]:
        run, command = self._called.run, self._called.command
        book = await open_book(store, world, run.namespace)
        self._definition = book.find_called(command.workflow, app=command.app, caller=run.queue)
        return ()

    def decide(self, world: World) -> None:
        run, definition = world.runs[self._called.run.run_id], self._definition
        step = run.operations.get(self._called.sequence)
        if run.is_closed or not isinstance(step, PushStep):
            return
        depth = push_of(run).depth + 1
        if definition is None:
            message = f"there is no workflow {self._called.command.workflow}"
            fail_step(run, world.ctx, step, error_of(message))
        elif depth > CALL_DEPTH_MAX:
            message = f"calls are nested more than {CALL_DEPTH_MAX} deep"
            fail_step(run, world.ctx, step, error_of(message))
        else:
            child = self._start(world, run, step, definition)
            step.child_run_id = child.run_id
            run.unsaved.operations.add(step.sequence)
            world.opened(child)
        world.changed(run)

    def _start(self, world: World, run: Run, step: PushStep, definition: Definition) -> Run:
        command, push = self._called.command, push_of(run)
        inherited = push.pin if definition.app == run.queue else ""
        return start_push_run(
            PushStart(
                namespace=run.namespace,
                app=definition.app,
                workflow=command.workflow,
                arguments=event_arguments(command.workflow, command.data),
                event_name=command.workflow,
                pin=command.pin or inherited,
                retry=step_retry(definition.workflow.retry),
                handles_failure=definition.workflow.on_failure,
                session=push.session,
                tags=push.tags,
                parent=Parent(run.run_id, run.workflow_id, step.sequence, step.step_id),
                depth=push.depth + 1,
                **limits_of(definition.app, definition.workflow, command.data, is_admitted=True),
            ),
            world.ctx,
        )


def call_ended(run: Run, ctx: Context, child: Run, output: bytes | None) -> None:
    """The child of a step has closed: the step has its result."""
    assert child.parent is not None
    step = run.operations.get(child.parent.sequence)
    if not isinstance(step, PushStep) or not step.is_open or step.child_run_id != child.run_id:
        return
    if child.status is RunStatus.COMPLETED:
        complete_step(run, ctx, step, output or NULL)
    else:
        fail_step(run, ctx, step, _error(child))


def _error(child: Run) -> StepError:
    failure = child.failure
    if child.status is not RunStatus.FAILED or failure is None:
        return error_of(f"child run {child.status.value}")
    told = failure.exception or encode({"message": failure.message})
    return StepError(failure.message, told)


class FollowEnd(Operation):
    """A push run has closed."""

    __slots__ = ("_ended",)
    name = "follow_end"

    def __init__(self, ended: Ended) -> None:
        self._ended = ended

    def decide(self, world: World) -> None:
        run = self._ended.run
        push = push_of(run)
        is_failed = run.status is RunStatus.FAILED and run.failure is not None
        if is_failed and push.handles_failure and push.failure_of is None:
            world.opened(_start_handler(run, world.ctx))
        finished = raise_finished(self._ended)
        if finished is not None:
            world.follow_ups.append(finished)
        if push.meters is not None:
            world.follow_ups.append(RecordUse(run))
        if push.singleton is not None:
            record = RecordKey(FLOW, run.namespace, push.singleton)
            world.follow_ups.append(ReleaseSingleton(record, run.run_id))


def _start_handler(run: Run, ctx: Context) -> Run:
    """The run in which the code of a workflow is told that a run of it has failed."""
    push = push_of(run)
    return start_push_run(
        PushStart(
            namespace=run.namespace,
            app=run.queue,
            workflow=run.workflow_type,
            arguments=run.arguments,
            event_name=push.event_name,
            trigger=push.trigger,
            event_id=push.event_id,
            pin=push.pin,
            retry=push.retry,
            failure_of=run.run_id,
            cap=push.cap,
            pass_timeout=push.pass_timeout,
            meters=unhindered(push.meters),
            case=push.case,
            error=_error(run).encoded,
            session=push.session,
            tags=push.tags,
        ),
        ctx,
    )
