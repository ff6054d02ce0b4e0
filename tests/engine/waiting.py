"""Runs that stand at waits for events, made in bulk and without a runner."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from perdure.core.limits import SECOND
from perdure.core.push.apply_pass import apply_pass
from perdure.core.push.command import AwaitEvent, EmitEvent, Progressed, StepCommand
from perdure.core.push.start import PushStart, event_arguments, start_push_run
from perdure.core.run.completion import TaskReport
from perdure.core.run.context import Context
from perdure.core.run.operation import PushStep
from perdure.core.run.state import Run
from perdure.core.run.task import lease_task
from perdure.engine.events import EVENT, Incoming, Ingested, IngestEvent, LoggedEvent
from perdure.engine.operation import Operation
from perdure.engine.records import RecordKind
from perdure.engine.world import World
from perdure.store.interface import RecordKey
from tests.engine.engine_harness import NAMESPACE, Stage

APP = "shop"


class Begun(NamedTuple):
    """A run that is to begin: the data of its event, and what its first pass asks for."""

    commands: Sequence[StepCommand]
    data: object = None
    app: str = APP
    namespace: str = NAMESPACE


def a_wait(
    event: str = "paid",
    *,
    name: str = "paid",
    match: dict[str, object] | None = None,
    where: str | None = None,
    timeout: int | None = None,
) -> AwaitEvent:
    told = None if match is None else msgspec.json.encode(match)
    return AwaitEvent(
        step_id=name, name=name, event_name=event, match=told, filter=where, timeout=timeout
    )


def an_emit(event: str = "paid", name: str = "emit") -> EmitEvent:
    return EmitEvent(step_id=name, name=name, event_name=event)


class Begin(Operation):
    """Begin runs whose first pass has been answered."""

    def __init__(self, *begun: Begun) -> None:
        self._begun = begun

    def decide(self, world: World) -> list[str]:
        run_ids = []
        for one in self._begun:
            data = msgspec.json.encode(one.data)
            start = PushStart(
                namespace=one.namespace,
                app=one.app,
                workflow="order",
                arguments=event_arguments("order", data),
                event_name="order",
            )
            run = start_push_run(start, world.ctx)
            answer(run, world.ctx, *one.commands)
            world.opened(run)
            run_ids.append(run.run_id)
        return run_ids


class Answer(Operation):
    """Answer the next pass of a run."""

    def __init__(self, run_id: str, *commands: StepCommand) -> None:
        self._run_id = run_id
        self._commands = commands

    def run_ids(self) -> tuple[str, ...]:
        return (self._run_id,)

    def decide(self, world: World) -> None:
        run = world.runs[self._run_id]
        answer(run, world.ctx, *self._commands)
        world.changed(run)


def answer(run: Run, ctx: Context, *commands: StepCommand) -> None:
    task = run.task
    assert task is not None
    lease_task(run, ctx, owner="r1", timeout=60 * SECOND, frame=None, runtime="push")
    report = TaskReport(number=task.number, owner="r1", attempt=task.attempt)
    apply_pass(run, ctx, report, Progressed(logs=[], commands=list(commands)), executed_by="r1")


class KeptOnce(msgspec.Struct):
    """A waiter as it was kept before there was an index."""

    app: str


class ForgetIndex(Operation):
    """Make the waits of some runs what they were before there was an index."""

    OLD = RecordKind("waiter", KeptOnce)

    def __init__(self, run_ids: Sequence[str]) -> None:
        self._run_ids = tuple(run_ids)

    reads_after_load = True

    def run_ids(self) -> tuple[str, ...]:
        return self._run_ids

    def closer_records(self, world: World) -> tuple[RecordKey, ...]:
        keys = []
        for run_id in self._run_ids:
            for step in _steps(world.runs[run_id]):
                index = f"!{step.event_index}\x1e" if step.event_index else ""
                for place in {index, ""}:
                    key = f"{step.event_name}\x1e{place}{run_id}\x1e{step.sequence}"
                    keys.append(self.OLD.key(NAMESPACE, key))
        return tuple(keys)

    def decide(self, world: World) -> None:
        for key in self.closer_records(world):
            world.put_record(key, None)
        for run_id in self._run_ids:
            run = world.runs[run_id]
            for step in _steps(run):
                step.event_index = ""
                run.unsaved.operations.add(step.sequence)
                plain = f"{step.event_name}\x1e{run_id}\x1e{step.sequence}"
                self.OLD.put(world, NAMESPACE, plain, KeptOnce(run.queue))
            world.changed(run)


def _steps(run: Run) -> list[PushStep]:
    return [step for step in run.operations.values() if isinstance(step, PushStep)]


# Events -------------------------------------------------------------------------------------------


def an_event(data: object = None, *, name: str = "paid", **members: str) -> IngestEvent:
    told = {"namespace": NAMESPACE, **members}
    return IngestEvent(Incoming(name=name, data=msgspec.json.encode(data), **told))  # type: ignore[arg-type]


async def send(stage: Stage, data: object = None, **members: str) -> Ingested:
    ingested: Ingested = await stage.play(an_event(data, **members))
    return ingested


async def logged(stage: Stage, event_id: str | None) -> LoggedEvent:
    """An event as it is on disk."""
    assert event_id is not None
    event = await EVENT.read(stage.engine.store, NAMESPACE, event_id)
    assert event is not None
    return event
