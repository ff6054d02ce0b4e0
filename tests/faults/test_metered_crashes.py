"""An engine that dies while runs wait for slots, tokens and models.

At every death the disk is asked: slots and turns are exactly those that runs have, and what was
used up is in every sum exactly once. In the end everybody went on and nothing is held any more, and
who had used up what a run may use was told so, and no model was asked.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Any

import msgspec
import pytest

from perdure.core.intake.flow_state import Slots
from perdure.core.intake.usage_log import UseLog
from perdure.core.push.usage_check import meters_of
from perdure.core.run.lease import TaskState
from perdure.core.run.operation import PushStep
from perdure.core.run.state import Run
from perdure.features.model_calls.usage_operations import Stretch
from tests.engine.ending import must_end
from tests.faults.crashing_server import COMMITS, DEATH, At
from tests.faults.full_metered_workflow import (
    BEYOND,
    RUNS,
    STEPS,
    TOKENS,
    MeteredCode,
    MeteredVoyage,
)
from tests.faults.server_processes import Nursery, die_in_every_beat, some_nurseries
from tests.faults.test_beat_crashes import Database, File, Place
from tests.support.models import ModelServer, completion
from tests.support.postgres import Cluster
from tests.support.server import STORES
from tests.support.tables import migrated_database

AT_ONCE = 4
LIVES_MIN = 12
PATIENCE = 90.0
"""Longer than any story takes: reaching it is a failure."""
CALLS = sum(RUNS.values())
"""How many calls of the engine are wanted."""


@pytest.fixture(scope="module")
def nurseries() -> Iterator[list[Nursery]]:
    with some_nurseries(AT_ONCE) as nurseries:
        yield nurseries


@pytest.mark.parametrize("at", [At.BEFORE_COMMIT, At.AFTER_COMMIT])
def test_no_death_costs_or_doubles_what_is_limited(
    at: At, nurseries: list[Nursery], tmp_path: Path
) -> None:
    asked: list[int] = []

    def live(nursery: Nursery, nth: int) -> bool:
        died, questions = sail(nursery, File(tmp_path / f"{nth}.db"), at=at, nth=nth)
        asked.append(questions)
        return died

    with must_end(seconds=240):
        assert die_in_every_beat(nurseries, live) > LIVES_MIN
    assert min(asked) >= CALLS
    # Before a commit some engine died with an answer in its hands, and asked again.
    assert at is At.AFTER_COMMIT or max(asked) > CALLS


def test_no_node_takes_limits_with_it(nurseries: list[Nursery], postgres_cluster: Cluster) -> None:
    """The same on PostgreSQL, where another node goes on with everything; in every second beat."""
    lock = Lock()

    def live(pair: tuple[Nursery, Nursery], nth: int) -> bool:
        with lock:
            url = migrated_database(postgres_cluster)
        nursery, heir = pair
        died, _ = sail(nursery, Database(url), at=COMMITS[nth % 3], nth=nth, heir=heir)
        postgres_cluster.drop_database(url)
        return died

    pairs = list(zip(nurseries[::2], nurseries[1::2], strict=True))
    with must_end(seconds=240):
        assert die_in_every_beat(pairs, live, step=2) > LIVES_MIN


@pytest.mark.parametrize("store", STORES)
def test_a_model_that_answered_a_dead_engine_is_asked_again_and_counted_once(
    store: str, nurseries: list[Nursery], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The provider has done its work, and its answer meets nobody."""
    disk: Place = File(tmp_path / "perdure.db")
    if store == "postgres":
        disk = Database(request.getfixturevalue("migrated_url"))
    with must_end(seconds=240):
        died, asked = sail(nurseries[0], disk, on_asked=1)
    assert died
    assert asked > CALLS


def sail(
    nursery: Nursery,
    disk: Place,
    *,
    at: At | None = None,
    nth: int = 0,
    on_asked: int = 0,
    heir: Nursery | None = None,
) -> tuple[bool, int]:
    """Play the story on an engine that dies once; whether it did, and how often a model was asked.

    If there is an heir it is there from the beginning, and nobody speaks to it.
    """
    died = False

    async def story() -> tuple[dict[str, Any], int]:
        models = await ModelServer().open()
        models.answers = [(200, completion("because", used=(TOKENS - 3, 3)))]
        models.on_asked = lambda count: nursery.kill() if count == on_asked else None
        inherited = "" if heir is None else heir.open(disk.store, ai_url=models.url)

        def next_life() -> str:
            nonlocal died
            died = True
            if at is not None:
                assert nursery.end_of_server() == DEATH
            check_limits(disk, asyncio.run(disk.check()))
            return inherited or nursery.open(disk.store, ai_url=models.url)

        url = nursery.open(disk.store, at=at, nth=nth, ai_url=models.url)
        voyage = MeteredVoyage(url, next_life, transport="connect", code=MeteredCode())
        told = await voyage.sail()
        models.close()
        asked = [question["messages"][0]["content"] for question in models.asked]
        assert BEYOND not in asked, "a call beyond the cap"
        return told, len(asked)

    try:
        told, asked = asyncio.run(asyncio.wait_for(story(), PATIENCE))
    finally:
        for each in (nursery, heir):
            if each is not None:
                each.kill()
    check_end(disk, told)
    return died, asked


def check_end(disk: Place, told: dict[str, Any]) -> None:
    """The story is over, and nobody could tell that anything happened."""
    assert Counter(run["workflowName"] for run in told["runs"]) == RUNS
    for run in told["runs"]:
        assert (run["status"], run["aiTokens"]) == ("succeeded", TOKENS * len(STEPS)), run
        steps = told["steps"][run["id"]]
        expected = [(name, "succeeded") for name in STEPS]
        if run["workflowName"] == "wide":
            expected += [(BEYOND, "failed")]
            assert "cap of the run is reached: 20 tokens of 20" in steps[-1]["error"]["message"]
        assert [(step["name"], step["status"]) for step in steps] == expected
    (model,) = told["spend"]["byModel"]
    assert model == {"model": "m-1", "tokens": TOKENS * len(STEPS) * CALLS, "calls": 2 * CALLS}
    for policy in ("budget", "tokenThrottle"):
        assert all(row["waiting"] == 0 for row in told["flow"][policy])
    check_limits(disk, asyncio.run(disk.check()))
    kinds = set(disk.select("kind", "record"))
    assert not kinds & {"slots", "slot_turn", "meter_turn", "inference"}


def check_limits(disk: Place, runs: list[Run]) -> None:
    """What the records say is what the runs have, whatever was under way."""
    _check_slots(disk, runs)
    _check_meters(disk, runs)
    spent = sum(map(_spent, runs))
    stretches = _records(disk, "ai_spend", Stretch).values()
    assert sum(one.tokens for each in stretches for one in each.models.values()) == spent
    asking = {
        f"{run.run_id}/{sequence}"
        for run in runs
        for sequence, step in run.operations.items()
        if isinstance(step, PushStep) and step.is_open and step.name == "ask"
    }
    assert set(disk.select("key", "record where kind = 'inference'")) == asking


def _check_slots(disk: Place, runs: list[Run]) -> None:
    counted = _records(disk, "slots", Slots)
    turns = Counter(_owner(turn) for turn in disk.select("key", "record where kind = 'slot_turn'"))
    held: Counter[str] = Counter()
    waiting: Counter[str] = Counter()
    for run in runs:
        assert run.push is not None
        assert run.push.slot is not None
        held[run.push.slot] += run.push.has_slot
        waiting[run.push.slot] += run.push.turn is not None
        if run.task is not None and run.task.state is TaskState.LEASED:
            assert run.push.has_slot, "a pass without a slot"
        assert held[run.push.slot] <= run.push.slot_limit
    assert +Counter({key: slots.in_use for key, slots in counted.items()}) == +held
    assert +Counter({key: slots.waiting for key, slots in counted.items()}) == +waiting
    assert turns == +waiting


def _check_meters(disk: Place, runs: list[Run]) -> None:
    logs = _records(disk, "meter", UseLog)
    turns = set(disk.select("key", "record where kind = 'meter_turn'"))
    told = [meters for meters in map(meters_of, runs) if meters is not None]
    assert {meters.turn for meters in told if meters.turn is not None} <= turns
    assert sum(log.waiting for log in logs.values()) == len(turns)
    wide = [run for run in runs if run.workflow_type == "wide"]
    ahead = sum(meters.estimated for meters in map(meters_of, wide) if meters is not None)
    for log in logs.values():
        if log.workflow == "wide":
            used = sum(tokens for _, tokens, _ in log.entries)
            expected = sum(map(_spent, wide)) + (ahead if log.policy == "tokenThrottle" else 0)
            assert used == expected, log


def _spent(run: Run) -> int:
    assert run.push is not None
    return 0 if run.push.spent is None else run.push.spent.tokens


def _owner(turn: str) -> str:
    """What a turn is for: its own name without its moment and its run."""
    return turn.rsplit("/", 2)[0]


def _records(disk: Place, kind: str, shape: type[Any]) -> dict[str, Any]:
    where = f"record where kind = '{kind}' order by key"
    keys, values = disk.select("key", where), disk.select("data", where)
    decode = msgspec.msgpack.Decoder(shape).decode
    return dict(zip(keys, map(decode, values), strict=True))
