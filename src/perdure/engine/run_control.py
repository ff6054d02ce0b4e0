"""Operations of people on push runs, each with a line in the book of what was done."""

from typing import ClassVar

from msgspec import Struct

from perdure.core.limits import DEDUPE_WINDOW
from perdure.core.push.control import Carried, carry_steps, pause_run, require_open, resume_run
from perdure.core.push.start import PushStart, start_push_run
from perdure.core.rejection import RunNotFound
from perdure.core.run.close import cancel_run
from perdure.core.run.state import Dialect, Run
from perdure.engine.operation import Operation
from perdure.engine.records import RecordKind
from perdure.engine.registration import SEPARATOR
from perdure.engine.world import World
from perdure.store.interface import RecordKey


class ControlAction(Struct, kw_only=True):
    """Something that was done to a run."""

    action: str
    created_at: int
    run_id: str | None = None
    new_run_id: str | None = None
    actor: str | None = None
    detail: str | None = None


ACTION = RecordKind("control_action", ControlAction)


class ControlRun(Operation):
    """A command to one push run."""

    __slots__ = ("_actor", "_namespace", "_run_id")
    action: ClassVar[str]

    def __init__(self, namespace: str, run_id: str, actor: str) -> None:
        self._namespace = namespace
        self._run_id = run_id
        self._actor = actor

    def run_ids(self) -> tuple[str, ...]:
        return (self._run_id,)

    def require_run(self, world: World) -> Run:
        run = world.runs.get(self._run_id)
        if run is None or run.namespace != self._namespace or run.dialect is not Dialect.PUSH:
            raise RunNotFound(f"there is no run {self._run_id[:64]}")
        return run

    def decide(self, world: World) -> None:
        run = self.require_run(world)
        if not self.apply(world, run):
            return
        world.changed(run)
        note_action(world, self._namespace, self.action, actor=self._actor, run_id=run.run_id)

    def apply(self, world: World, run: Run) -> bool:
        """Do it; whether anything changed."""
        raise NotImplementedError


def note_action(
    world: World,
    namespace: str,
    action: str,
    *,
    actor: str,
    run_id: str | None = None,
    new_run_id: str | None = None,
    detail: str | None = None,
) -> None:
    """Write down what somebody did."""
    done = ControlAction(
        action=action,
        created_at=world.ctx.now,
        run_id=run_id,
        new_run_id=new_run_id,
        actor=actor,
        detail=detail,
    )
    ACTION.add(world, namespace, world.ctx.ids.ulid(), done)


class CancelPushRun(ControlRun):
    """End a run at once, with everything that it waits for."""

    __slots__ = ()
    name = "cancel_push_run"
    action = "cancel"

    def apply(self, world: World, run: Run) -> bool:
        require_open(run)
        cancel_run(run, world.ctx, command_id=world.ctx.ids.ulid(), reason=None)
        return True


class PauseRun(ControlRun):
    __slots__ = ()
    name = "pause_run"
    action = "pause"

    def apply(self, world: World, run: Run) -> bool:
        return pause_run(run, world.ctx, reason="manual")


class ResumeRun(ControlRun):
    __slots__ = ()
    name = "resume_run"
    action = "resume"

    def apply(self, world: World, run: Run) -> bool:
        resume_run(run, world.ctx)
        return True


class Begun(Struct):
    """An identity under which somebody began a run again."""

    run_id: str


BEGUN = RecordKind("begun_again", Begun)


def begun_key(source_id: str, action: str, dedupe_id: str) -> str:
    """Where it stands what was begun from a run under an identity."""
    return SEPARATOR.join((source_id, action, dedupe_id))


class BeginAgain(Operation):
    """A run that is over begins once more, as a new one, from its start or from a step.

    Repeated under its identity it is the same run.
    """

    __slots__ = ("_action", "_actor", "_carried", "_detail", "_identity", "_request")
    name = "begin_again"

    def __init__(
        self,
        request: PushStart,
        carried: list[Carried],
        *,
        action: str,
        actor: str,
        detail: str | None = None,
        dedupe_id: str | None = None,
    ) -> None:
        source_id = request.replay_of or ""
        self._identity = None if dedupe_id is None else begun_key(source_id, action, dedupe_id)
        self._request = request
        self._carried = carried
        self._action = action
        self._actor = actor
        self._detail = detail

    def records(self) -> tuple[RecordKey, ...]:
        if self._identity is None:
            return ()
        return (BEGUN.key(self._request.namespace, self._identity),)

    def decide(self, world: World) -> str:
        namespace, identity = self._request.namespace, self._identity
        known = None if identity is None else BEGUN.find(world, namespace, identity)
        if known is not None:
            return known.run_id
        run_id = self._begin(world)
        if identity is not None:
            until = world.ctx.now + DEDUPE_WINDOW
            BEGUN.put(world, namespace, identity, Begun(run_id), due_at=until)
        return run_id

    def _begin(self, world: World) -> str:
        run = start_push_run(self._request, world.ctx)
        carry_steps(run, world.ctx, self._carried)
        world.opened(run)
        note_action(
            world,
            run.namespace,
            self._action,
            actor=self._actor,
            run_id=self._request.replay_of,
            new_run_id=run.run_id,
            detail=self._detail,
        )
        return run.run_id
