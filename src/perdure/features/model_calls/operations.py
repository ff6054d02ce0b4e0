"""Operations of model calls that the engine makes: open with a step, begin a try, conclude it.

A call is a record that is due at its next try, written in the beat that opens its step.
"""

from perdure.core.limits import SECOND
from perdure.core.push.effect import Asked
from perdure.engine.operation import Operation
from perdure.engine.records import RecordKind
from perdure.engine.world import World
from perdure.features.model_calls.rules import (
    NO_END,
    NO_PROVIDER,
    Inference,
    Outcome,
    Unanswered,
    begin,
    conclude,
    end_inference,
    waiting_step,
)
from perdure.store.interface import RecordKey

INFERENCE = RecordKind("inference", Inference)


def inference_key(run_id: str, sequence: int) -> str:
    return f"{run_id}/{sequence}"


class OpenInference(Operation):
    """Stores the model call that a step requests."""

    __slots__ = ("_asked",)
    name = "open_inference"

    def __init__(self, asked: Asked) -> None:
        self._asked = asked

    def decide(self, world: World) -> None:
        run, command = self._asked.run, self._asked.command
        now = world.ctx.now
        inference = Inference(
            run_id=run.run_id,
            sequence=self._asked.sequence,
            messages=command.messages,
            model=command.model,
            tokens_max=command.tokens_max,
            due_at=now,
        )
        key = inference_key(run.run_id, self._asked.sequence)
        INFERENCE.add(world, run.namespace, key, inference, due_at=now)


class InferenceOperation(Operation):
    """A change of one call and of the run that waits for it."""

    __slots__ = ("_record",)

    def __init__(self, record: RecordKey) -> None:
        self._record = record

    def run_ids(self) -> tuple[str, ...]:
        return (self._record.key.partition("/")[0],)

    def records(self) -> tuple[RecordKey, ...]:
        return (self._record,)

    def find(self, world: World) -> Inference | None:
        return INFERENCE.find(world, self._record.namespace, self._record.key)

    def put(self, world: World, inference: Inference) -> None:
        _, namespace, key = self._record
        INFERENCE.put(world, namespace, key, inference, due_at=inference.due_at)

    def end(self, world: World, inference: Inference, outcome: Outcome) -> None:
        """End the call, and finish its step if that still waits."""
        run = world.runs.get(inference.run_id)
        step = waiting_step(run, inference)
        if run is not None and step is not None:
            end_inference(run, world.ctx, step, outcome, inference.tries)
            world.changed(run)
        world.put_record(self._record, None)


class BeginInference(InferenceOperation):
    """Counts one more try of a call that is due. `begun` is sent once the count is on disk."""

    __slots__ = ("_has_provider", "_has_room", "begun")
    name = "begin_inference"

    def __init__(self, record: RecordKey, *, has_provider: bool, has_room: bool) -> None:
        super().__init__(record)
        self._has_provider = has_provider
        self._has_room = has_room
        self.begun: Inference | None = None

    def decide(self, world: World) -> bool:
        self.begun = None
        inference, now = self.find(world), world.ctx.now
        if inference is None or now < inference.due_at:
            return True
        if waiting_step(world.runs.get(inference.run_id), inference) is None:
            world.put_record(self._record, None)
        elif not self._has_provider:
            self.end(world, inference, Unanswered(NO_PROVIDER, is_passing=False))
        elif not self._has_room:
            _, namespace, key = self._record
            INFERENCE.put(world, namespace, key, inference, due_at=now + SECOND)
        else:
            self.begun = begin(inference, now)
            if self.begun is None:
                self.end(world, inference, Unanswered(NO_END, is_passing=False))
            else:
                self.put(world, self.begun)
        return True


class ConcludeInference(InferenceOperation):
    """Stores the end of a try. After its timeout only an answer counts, for it was paid for."""

    __slots__ = ("_outcome", "_tries")
    name = "conclude_inference"

    def __init__(self, record: RecordKey, tries: int, outcome: Outcome) -> None:
        super().__init__(record)
        self._tries = tries
        self._outcome = outcome

    def decide(self, world: World) -> None:
        inference = self.find(world)
        if inference is None:
            return
        if inference.tries != self._tries and isinstance(self._outcome, Unanswered):
            return
        again = conclude(inference, self._outcome, world.ctx.now)
        if again is None:
            self.end(world, inference, self._outcome)
        else:
            self.put(world, again)
