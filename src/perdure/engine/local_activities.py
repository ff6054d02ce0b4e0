"""Operations of workers that ask before they run local activities."""

from collections.abc import Sequence

from msgspec import Struct, structs

from perdure.core.limits import SECOND
from perdure.core.rejection import CompletionOverflows, StreamFull
from perdure.core.run.claim import Checkpoint, LocalEnd
from perdure.core.run.command import Command, PrepareLocalActivity
from perdure.core.run.completion import TaskReport
from perdure.core.run.local.attempt import (
    Outcome,
    Stop,
    Watched,
    acknowledge,
    end_attempt,
    heartbeat,
    watch,
)
from perdure.core.run.local.preparation import (
    Checkpointed,
    checkpoint,
    checkpoint_group,
    find_checkpoint,
    prepare,
    recover,
    require_claim,
)
from perdure.core.run.operation import LocalActivity
from perdure.core.run.state import Run
from perdure.engine.streams import Outlets, directives_of
from perdure.engine.workflow_tasks import TaskOperation
from perdure.engine.world import World
from perdure.store.interface import RecordKey, Store


class Committed(Struct, frozen=True):
    """Steps that are in history now, or were before."""

    run_id: str
    checkpoint: Checkpoint
    duplicate: bool


class CheckpointOperation(TaskOperation):
    """The worker commits steps in the middle of its task."""

    __slots__ = ("_checkpoint_id", "_start")

    def __init__(
        self, namespace: str, run_id: str, report: TaskReport, *, checkpoint_id: str, start: int
    ) -> None:
        super().__init__(namespace, run_id, report)
        self._checkpoint_id = checkpoint_id
        self._start = start

    def decide(self, world: World) -> Committed:
        run = self.require_run(world)
        done = self._commit(run, world)
        if not done.duplicate:
            world.changed(run)
        return Committed(run.run_id, done.checkpoint, done.duplicate)

    def _commit(self, run: Run, world: World) -> Checkpointed:
        raise NotImplementedError


class CheckpointPrefix(CheckpointOperation):
    """The worker commits what its code did before a local activity."""

    __slots__ = ("_commands", "_outlets")
    name = "checkpoint_prefix"

    def __init__(
        self,
        namespace: str,
        run_id: str,
        report: TaskReport,
        *,
        checkpoint_id: str,
        start: int,
        commands: Sequence[Command],
    ) -> None:
        super().__init__(namespace, run_id, report, checkpoint_id=checkpoint_id, start=start)
        self._commands = commands
        self._outlets = Outlets(namespace, run_id, directives_of(commands))

    def records(self) -> tuple[RecordKey, ...]:
        return self._outlets.records()

    def _commit(self, run: Run, world: World) -> Checkpointed:
        return checkpoint(
            run,
            world.ctx,
            self._report,
            checkpoint_id=self._checkpoint_id,
            start=self._start,
            commands=self._commands,
        )


class CheckpointStreams(CheckpointPrefix):
    """What the worker commits writes to streams, in the same transaction."""

    __slots__ = ()
    reads_before_load = True

    async def prepare(self, store: Store, world: World) -> tuple[str, ...]:
        await self._outlets.prepare(store, world)
        return ()

    def _commit(self, run: Run, world: World) -> Checkpointed:
        if find_checkpoint(run, self._report, self._checkpoint_id) is not None:
            # It is a repeat, and so are its items.
            return super()._commit(run, world)
        require_claim(run, world.ctx, self._report)
        try:
            changes, _ = self._outlets.plan(world)
        except StreamFull as full:
            raise CompletionOverflows(full.message, **full.details) from None
        done = super()._commit(run, world)
        self._outlets.write(world, changes)
        return done


class CheckpointGroup(CheckpointOperation):
    """The worker opens a list with local activities in it."""

    __slots__ = ("_commands",)
    name = "checkpoint_group"

    def __init__(
        self,
        namespace: str,
        run_id: str,
        report: TaskReport,
        *,
        checkpoint_id: str,
        start: int,
        commands: Sequence[Command | PrepareLocalActivity],
    ) -> None:
        super().__init__(namespace, run_id, report, checkpoint_id=checkpoint_id, start=start)
        self._commands = commands

    def _commit(self, run: Run, world: World) -> Checkpointed:
        return checkpoint_group(
            run,
            world.ctx,
            self._report,
            checkpoint_id=self._checkpoint_id,
            start=self._start,
            commands=self._commands,
        )


class CleanupView(Struct, frozen=True):
    """The delivered cancellation behind which an attempt tidies up."""

    request_id: str
    root_request_id: str
    event_id: str
    deadline_at: int


class AttemptView(Struct, frozen=True, kw_only=True):
    """An attempt as its worker is told of it, at one instant."""

    execution_id: str
    attempt_id: str
    attempt_number: int
    now: int
    lease_expires_at: int
    start_to_close_at: int | None
    schedule_to_close_at: int | None
    heartbeat_due_at: int | None
    heartbeat_event_id: str
    cleanup: CleanupView | None
    duplicate: bool = False
    # Of one that has to stop: why, and the request to cancel.
    reason: str | None = None
    cancellation: bytes | None = None
    cancellation_event_id: str | None = None


def _view(
    run: Run, local: LocalActivity, now: int, lease_expires_at: int, *, duplicate: bool = False
) -> AttemptView:
    timeouts = local.timeouts
    beat_at = local.heartbeat_at or local.started_at
    cleanup = _cleanup(run) if local.cleanup else None
    end = None if cleanup is None else cleanup.deadline_at
    heartbeat_due_at = _capped(beat_at, timeouts.heartbeat, end)
    return AttemptView(
        execution_id=local.execution_id,
        attempt_id=local.attempt_id,
        attempt_number=local.attempt,
        now=now,
        lease_expires_at=lease_expires_at,
        start_to_close_at=_capped(local.started_at, timeouts.start_to_close, end),
        schedule_to_close_at=_capped(local.scheduled_at, timeouts.schedule_to_close, end),
        # Clean-up without a heartbeat of its own has to be heard of before the time is up.
        heartbeat_due_at=end if heartbeat_due_at is None else heartbeat_due_at,
        heartbeat_event_id=local.heartbeat_event_id,
        cleanup=cleanup,
        duplicate=duplicate,
    )


def _capped(since: int, seconds: int | None, end: int | None) -> int | None:
    if seconds is None:
        return None
    at = since + seconds * SECOND
    return at if end is None else min(at, end)


def _cleanup(run: Run) -> CleanupView:
    cancellation = run.cancellation
    assert cancellation is not None
    return CleanupView(
        cancellation.request_id,
        cancellation.root_request_id,
        cancellation.delivered_event_id or "",
        cancellation.deadline_at,
    )


class PrepareAttempt(TaskOperation):
    """The worker asks for leave to run a local activity."""

    __slots__ = ("_command", "_nonce", "_sequence")
    name = "prepare_local_activity"

    def __init__(
        self,
        namespace: str,
        run_id: str,
        report: TaskReport,
        *,
        sequence: int,
        nonce: str,
        command: PrepareLocalActivity,
    ) -> None:
        super().__init__(namespace, run_id, report)
        self._sequence = sequence
        self._nonce = nonce
        self._command = command

    def decide(self, world: World) -> AttemptView:
        run = self.require_run(world)
        begun = prepare(
            run,
            world.ctx,
            self._report,
            sequence=self._sequence,
            nonce=self._nonce,
            command=self._command,
        )
        if not begun.duplicate:
            world.changed(run)
        now = world.ctx.now
        return _view(run, begun.local, now, begun.lease_expires_at, duplicate=begun.duplicate)


class Finished(Struct, frozen=True):
    """How an attempt ended."""

    run_id: str
    end: LocalEnd
    duplicate: bool


class RecoverAttempt(TaskOperation):
    """The worker found an attempt of another one that is gone."""

    __slots__ = ("_command", "_sequence")
    name = "recover_local_activity"

    def __init__(
        self,
        namespace: str,
        run_id: str,
        report: TaskReport,
        *,
        sequence: int,
        command: PrepareLocalActivity,
    ) -> None:
        super().__init__(namespace, run_id, report)
        self._sequence = sequence
        self._command = command

    def decide(self, world: World) -> Finished:
        run = self.require_run(world)
        done = recover(run, world.ctx, self._report, sequence=self._sequence, command=self._command)
        if not done.duplicate:
            world.changed(run)
        return Finished(run.run_id, done.end, done.duplicate)


class LocalAttemptOperation(TaskOperation):
    """A word of a worker on an attempt that it runs."""

    __slots__ = ("_attempt_id",)

    def __init__(self, namespace: str, run_id: str, report: TaskReport, attempt_id: str) -> None:
        super().__init__(namespace, run_id, report)
        self._attempt_id = attempt_id

    def show(self, world: World, run: Run, watched: Watched) -> AttemptView:
        world.changed(run)
        view = _view(run, watched.local, world.ctx.now, watched.lease_expires_at)
        cancellation = watched.cancellation
        if watched.reason is None:
            return view
        return structs.replace(
            view,
            reason=watched.reason,
            cancellation=None if cancellation is None else cancellation.context,
            cancellation_event_id=None if cancellation is None else cancellation.event_id,
        )


class WatchAttempt(LocalAttemptOperation):
    """The worker asks whether it may go on, and keeps its lease."""

    __slots__ = ("_timeout",)
    name = "watch_local_activity"

    def __init__(
        self,
        namespace: str,
        run_id: str,
        report: TaskReport,
        attempt_id: str,
        *,
        timeout: int | None,
    ) -> None:
        super().__init__(namespace, run_id, report, attempt_id)
        self._timeout = timeout

    def decide(self, world: World) -> AttemptView:
        run = self.require_run(world)
        watched = watch(run, world.ctx, self._report, self._attempt_id, timeout=self._timeout)
        return self.show(world, run, watched)


class HeartbeatAttempt(LocalAttemptOperation):
    """A sign of life of the activity itself."""

    __slots__ = ("_progress",)
    name = "heartbeat_local_activity"

    def __init__(
        self,
        namespace: str,
        run_id: str,
        report: TaskReport,
        attempt_id: str,
        *,
        progress: bytes | None,
    ) -> None:
        super().__init__(namespace, run_id, report, attempt_id)
        self._progress = progress

    def decide(self, world: World) -> AttemptView:
        run = self.require_run(world)
        watched = heartbeat(run, world.ctx, self._report, self._attempt_id, self._progress)
        return self.show(world, run, watched)


class EndAttempt(LocalAttemptOperation):
    """The outcome of an attempt."""

    __slots__ = ("_outcome",)
    name = "end_local_activity"

    def __init__(
        self, namespace: str, run_id: str, report: TaskReport, attempt_id: str, *, outcome: Outcome
    ) -> None:
        super().__init__(namespace, run_id, report, attempt_id)
        self._outcome = outcome

    def decide(self, world: World) -> Finished:
        run = self.require_run(world)
        done = end_attempt(run, world.ctx, self._report, self._attempt_id, self._outcome)
        if not done.duplicate:
            world.changed(run)
        return Finished(run.run_id, done.end, done.duplicate)


class AcknowledgeAttempt(LocalAttemptOperation):
    """The worker has stopped what it was told to stop."""

    __slots__ = ("_request_id",)
    name = "acknowledge_local_activity"

    def __init__(
        self, namespace: str, run_id: str, report: TaskReport, attempt_id: str, *, request_id: str
    ) -> None:
        super().__init__(namespace, run_id, report, attempt_id)
        self._request_id = request_id

    def decide(self, world: World) -> Stop:
        run = self.require_run(world)
        done = acknowledge(run, world.ctx, self._report, self._attempt_id, self._request_id)
        if not done.duplicate:
            world.changed(run)
        return done
