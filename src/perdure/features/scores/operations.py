"""Scores as records under their runs; a run, open or closed, counts its own."""

from msgspec import Struct

from perdure.core.limits import DEDUPE_WINDOW
from perdure.core.push.apply_pass import error_of
from perdure.core.push.effect import Scored, ScoredElsewhere
from perdure.core.push.score import Judgement, Score, judge
from perdure.core.push.step import NULL, complete_step, fail_step
from perdure.core.rejection import Rejection, RunNotFound
from perdure.core.run.operation import PushStep
from perdure.core.run.state import Dialect
from perdure.engine.operation import Operation
from perdure.engine.records import RecordKind
from perdure.engine.registration import SEPARATOR
from perdure.engine.world import World
from perdure.features.scores.eval_operations import count_score
from perdure.store.interface import RecordKey


class Given(Struct):
    """The score that was added under a dedupe id."""

    score_id: str


SCORE = RecordKind("score", Score)
GIVEN = RecordKind("score_given", Given)


def score_key(run_id: str, score_id: str) -> str:
    return run_id + SEPARATOR + score_id


class KeepScore(Operation):
    """Stores the score that a step gave its own run; the run has counted it."""

    __slots__ = ("_scored",)
    name = "keep_score"

    def __init__(self, scored: Scored) -> None:
        self._scored = scored

    def decide(self, world: World) -> None:
        _add(world, self._scored.run.namespace, self._scored.score)


class ScoreAnother(Operation):
    """Adds the score that a step gives another run, and finishes or fails the step."""

    __slots__ = ("_effect",)
    name = "score_another"

    def __init__(self, effect: ScoredElsewhere) -> None:
        self._effect = effect

    def run_ids(self) -> tuple[str, ...]:
        return (self._effect.run.run_id, self._effect.command.run_id or "")

    def decide(self, world: World) -> None:
        run_id, target_id = self.run_ids()
        run, command = world.runs[run_id], self._effect.command
        step = run.operations.get(self._effect.sequence)
        if run.is_closed or not isinstance(step, PushStep):
            return
        try:
            _judge(world, run.namespace, target_id, command.judgement, run.workflow_type)
        except Rejection as refusal:
            fail_step(run, world.ctx, step, error_of(refusal.message))
        else:
            complete_step(run, world.ctx, step, NULL)
        world.changed(run)


class ScoreGiven(Struct, frozen=True):
    """A score, and the id under which it is listed."""

    score_id: str
    score: Score


class AddScore(Operation):
    """Adds a score to a run. A repeated dedupe id returns the first score."""

    __slots__ = ("_dedupe_id", "_judgement", "_namespace", "_run_id", "_scorer")
    name = "add_score"

    def __init__(
        self,
        namespace: str,
        run_id: str,
        judgement: Judgement,
        *,
        scorer: str,
        dedupe_id: str | None,
    ) -> None:
        self._namespace = namespace
        self._run_id = run_id
        self._judgement = judgement
        self._scorer = scorer
        self._dedupe_id = dedupe_id

    def run_ids(self) -> tuple[str, ...]:
        return (self._run_id,)

    def records(self) -> tuple[RecordKey, ...]:
        if self._dedupe_id is None:
            return ()
        return (GIVEN.key(self._namespace, score_key(self._run_id, self._dedupe_id)),)

    def decide(self, world: World) -> ScoreGiven | str:
        """The score, or the id of the one that was added before."""
        identity = score_key(self._run_id, self._dedupe_id or "")
        if self._dedupe_id is not None:
            given = GIVEN.find(world, self._namespace, identity)
            if given is not None:
                return given.score_id
        added = _judge(world, self._namespace, self._run_id, self._judgement, self._scorer)
        if self._dedupe_id is not None:
            until = world.ctx.now + DEDUPE_WINDOW
            GIVEN.put(world, self._namespace, identity, Given(added.score_id), due_at=until)
        return added


def _judge(
    world: World, namespace: str, run_id: str, judgement: Judgement, scorer: str
) -> ScoreGiven:
    run = world.runs.get(run_id)
    if run is None or run.namespace != namespace or run.dialect is not Dialect.PUSH:
        raise RunNotFound(f"there is no run {run_id[:64]}")
    judge(run, judgement)
    world.changed(run)
    score = Score(run_id=run_id, judgement=judgement, created_at=world.ctx.now, scorer=scorer)
    return ScoreGiven(_add(world, namespace, score), score)


def _add(world: World, namespace: str, score: Score) -> str:
    score_id = world.ctx.ids.ulid()
    SCORE.add(world, namespace, score_key(score.run_id, score_id), score)
    counting = count_score(world.runs[score.run_id], score)
    if counting is not None:
        world.follow_ups.append(counting)
    return score_id
