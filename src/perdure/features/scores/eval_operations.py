"""Evals: one run of a workflow for every case of a dataset, and the sums of their scores.

An eval set counts the scores of its runs in the beat that adds them.
"""

from msgspec import Struct, field

from perdure.core.limits import DATASET_ITEMS_MAX, EVAL_SCORE_NAMES_MAX
from perdure.core.push.score import Score
from perdure.core.push.start import PushStart, event_arguments, start_push_run
from perdure.core.push.step import push_of
from perdure.core.rejection import DatasetIsEmpty, WorkflowNotFound
from perdure.core.run.push import EvalCase
from perdure.core.run.state import Run
from perdure.engine.admission import limits_of, step_retry
from perdure.engine.catalogue import Definition
from perdure.engine.operation import Operation
from perdure.engine.records import RecordKind
from perdure.engine.registration import SEPARATOR, open_book
from perdure.engine.world import World
from perdure.features.scores.dataset_operations import (
    DATASET,
    ITEM,
    Identity,
    Item,
    MakingOperation,
    item_key,
    require_dataset,
)
from perdure.store.interface import RecordKey, RecordRange, Store


class ScoreSum(Struct):
    """The sum of the scores of one name."""

    count: int = 0
    total: float = 0.0


class EvalSet(Struct, kw_only=True):
    """One eval of a workflow."""

    dataset_id: str
    workflow: str
    app: str
    created_at: int
    label: str | None = None
    runs: int = 0
    scores: dict[str, ScoreSum] = field(default_factory=dict)


class EvalRuns(Struct):
    """The runs of an eval set, in the order of the items."""

    run_ids: list[str]


EVAL_SET = RecordKind("eval_set", EvalSet)
EVAL_RUNS = RecordKind("eval_runs", EvalRuns)
EVAL_OF = RecordKind("eval_of", EvalRuns)
"""Index from a dataset to its eval sets; only the keys matter."""


class StartEval(MakingOperation):
    """Starts a run of a workflow for every case; returns the id of the eval set."""

    __slots__ = ("_app", "_dataset_id", "_definition", "_items", "_label", "_workflow")
    name = "start_eval"
    reads_before_load = True

    def __init__(
        self,
        namespace: str,
        dataset_id: str,
        workflow: str,
        *,
        app: str | None,
        label: str | None,
        dedupe_id: Identity,
    ) -> None:
        super().__init__(namespace, "eval", dataset_id, dedupe_id=dedupe_id)
        self._dataset_id = dataset_id
        self._workflow = workflow
        self._app = app
        self._label = label
        self._definition: Definition | None = None
        self._items: tuple[RecordKey, ...] = ()

    async def prepare(self, store: Store, world: World) -> tuple[str, ...]:
        book = await open_book(store, world, self._namespace)
        self._definition = book.find_called(self._workflow, app=self._app, caller="")
        items = RecordRange(
            kind=ITEM.name,
            namespace=self._namespace,
            prefix=item_key(self._dataset_id, ""),
            limit=DATASET_ITEMS_MAX,
        )
        self._items = tuple(await store.find_record_keys(items))
        return ()

    def records(self) -> tuple[RecordKey, ...]:
        dataset = DATASET.key(self._namespace, self._dataset_id)
        return (dataset, *self._items, *self.identity_records())

    def decide(self, world: World) -> str:
        require_dataset(world, self._namespace, self._dataset_id)
        made = self.find_made(world)
        if made is not None:
            return made
        definition = self._definition
        if definition is None:
            raise WorkflowNotFound(f"there is no workflow {self._workflow[:64]}")
        eval_id = world.ctx.ids.ulid()
        run_ids = [
            self._start(world, definition, eval_id, key.key, item)
            for key in sorted(self._items)
            if (item := ITEM.find(world, self._namespace, key.key)) and not item.archived
        ]
        if not run_ids:
            raise DatasetIsEmpty(f"dataset {self._dataset_id[:64]} has no items")
        eval_set = EvalSet(
            dataset_id=self._dataset_id,
            workflow=self._workflow,
            app=definition.app,
            created_at=world.ctx.now,
            label=self._label,
            runs=len(run_ids),
        )
        EVAL_SET.add(world, self._namespace, eval_id, eval_set)
        EVAL_RUNS.add(world, self._namespace, eval_id, EvalRuns(run_ids))
        of = self._dataset_id + SEPARATOR + eval_id
        EVAL_OF.add(world, self._namespace, of, EvalRuns([]))
        self.note_made(world, eval_id)
        return eval_id

    def _start(
        self, world: World, definition: Definition, eval_id: str, key: str, item: Item
    ) -> str:
        run = start_push_run(
            PushStart(
                namespace=self._namespace,
                app=definition.app,
                workflow=self._workflow,
                arguments=event_arguments(self._workflow, item.input),
                event_name=self._workflow,
                trigger="eval",
                retry=step_retry(definition.workflow.retry),
                handles_failure=definition.workflow.on_failure,
                case=EvalCase(eval_id, key.rpartition(SEPARATOR)[2], item.expected),
                **limits_of(definition.app, definition.workflow, item.input, is_admitted=True),
            ),
            world.ctx,
        )
        world.opened(run)
        return run.run_id


class CountScore(Operation):
    """Adds the score of a run to its eval set."""

    __slots__ = ("_namespace", "_score", "_set_id")
    name = "count_score"

    def __init__(self, namespace: str, set_id: str, score: Score) -> None:
        self._namespace = namespace
        self._set_id = set_id
        self._score = score

    def records(self) -> tuple[RecordKey, ...]:
        return (EVAL_SET.key(self._namespace, self._set_id),)

    def decide(self, world: World) -> None:
        judgement = self._score.judgement
        eval_set = EVAL_SET.find(world, self._namespace, self._set_id)
        if eval_set is None or judgement.value is None:
            return
        if judgement.name not in eval_set.scores and len(eval_set.scores) >= EVAL_SCORE_NAMES_MAX:
            return
        counted = eval_set.scores.setdefault(judgement.name, ScoreSum())
        counted.count += 1
        counted.total += judgement.value
        EVAL_SET.put(world, self._namespace, self._set_id, eval_set)


def count_score(run: Run, score: Score) -> Operation | None:
    """The follow-up of a score, if its run belongs to an eval set.

    A replay of such a run does not count: its case would count twice.
    """
    push = push_of(run)
    if push.case is None or push.replay_of is not None or push.failure_of is not None:
        return None
    return CountScore(run.namespace, push.case.set_id, score)
