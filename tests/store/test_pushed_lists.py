"""Lists of push runs: every order page by page, each from an index of its own."""

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, get_args

import apsw
import pytest

from perdure.core.run.state import Run
from perdure.core.run.status import CLOSED, RunStatus
from perdure.store.interface import PushedCursor, PushedFilter, PushedSort, Store
from perdure.store.postgres.statements import Statements
from perdure.store.push_lists import cursor_behind, question
from perdure.store.queries import load_queries
from perdure.store.sqlite.schema import migrate, prepare_writer
from tests.store.building import NOW, a_run
from tests.store.keeping import Keep
from tests.store.nodes import session

SQLITE = "perdure.store.sqlite"
SORTS: tuple[PushedSort, ...] = get_args(PushedSort)
INDEXES: dict[PushedSort, tuple[str, ...]] = {
    "started": ("run_push_idx",),
    "workflow": ("run_push_workflow_idx",),
    "app": ("run_push_app_idx",),
    "status": ("run_push_status_idx", "run_push_open_idx"),
    "duration": ("run_push_duration_idx", "run_push_open_idx"),
}


def a_crowd() -> list[Run]:
    """Push runs of two workflows, two apps and all statuses, many of them alike in every order."""
    runs = []
    for number, status in enumerate([*RunStatus] * 3):
        run = a_run(
            now=NOW + number % 4,
            workflow_type=("order", "mail")[number % 2],
            queue=("shop", "bank", "\U0010ffff")[number % 3],
        )
        run.workflow_id, run.status = run.run_id, status
        run.closed_at = run.started_at + number % 2 if status in CLOSED else None
        runs.append(run)
    return runs


def orders() -> list[PushedFilter]:
    return [
        PushedFilter(namespace="default", sort=sort, ascending=ascending)
        for sort in SORTS
        for ascending in (True, False)
    ]


def in_order(runs: Sequence[Run], wanted: PushedFilter) -> list[str]:
    def key(run: Run) -> tuple[Any, ...]:
        started_at, run_id, place = cursor_behind(run, wanted.sort)
        return (place, started_at, run_id) if place is not None else (started_at, run_id)

    return [run.run_id for run in sorted(runs, key=key, reverse=not wanted.ascending)]


def walked(keep: Keep, store: Store, wanted: PushedFilter, size: int) -> list[str]:
    found: list[str] = []
    cursor: PushedCursor | None = None
    while page := keep.run(store.read_pushed(wanted, cursor, size)):
        assert len(page) <= size
        found += [run.run_id for run in page]
        cursor = cursor_behind(page[-1], wanted.sort)
    return found


def test_pages_of_every_order_meet_between_runs_that_are_alike(keep: Keep) -> None:
    runs = a_crowd()
    with keep.opened() as store:
        keep.commit(store, *runs, a_run("pulled"), a_run("foreign", namespace="x"))
        for wanted in orders():
            for size in (1, 4, 50):
                seen = walked(keep, store, wanted, size)
                assert seen == in_order(runs, wanted), (wanted.sort, wanted.ascending, size)


def test_a_run_that_closes_takes_its_new_place_in_every_order(keep: Keep) -> None:
    runs = a_crowd()
    with keep.opened() as store:
        keep.commit(store, *runs)
        for run in runs:
            if not run.is_closed:
                run.status, run.closed_at = RunStatus.FAILED, run.started_at + 7
        keep.commit(store, *runs)

        for wanted in orders():
            assert walked(keep, store, wanted, 5) == in_order(runs, wanted)


def test_filters_hold_in_every_order(keep: Keep) -> None:
    runs = a_crowd()
    with keep.opened() as store:
        keep.commit(store, *runs)
        for order in orders():
            wanted = PushedFilter(
                namespace="default",
                app="shop",
                workflow="order",
                statuses=("failed", "waiting"),
                since=NOW + 1,
                text="rde",
                sort=order.sort,
                ascending=order.ascending,
            )
            fitting = [
                run
                for run in runs
                if (run.queue, run.workflow_type) == ("shop", "order")
                and run.status in ("failed", "waiting")
                and run.started_at > NOW
            ]
            assert fitting
            assert walked(keep, store, wanted, 1) == in_order(fitting, wanted)


@pytest.mark.parametrize("wanted", orders(), ids=lambda one: f"{one.sort}-{one.ascending}")
def test_sqlite_reads_a_page_from_the_index_of_its_order(wanted: PushedFilter) -> None:
    connection = apsw.Connection(":memory:")
    prepare_writer(connection)
    migrate(connection, SQLITE)
    name, values = question(wanted, None, None, 10)

    steps = [
        str(row[3])
        for row in connection.execute(f"explain query plan {load_queries(SQLITE)[name]}", values)
    ]

    read = [step for step in steps if step.startswith("SEARCH run ")]
    indexes = INDEXES[wanted.sort]
    bound = "(started_at,run_id)" if wanted.sort == "started" else ",started_at,run_id)"
    sign = ">" if wanted.ascending else "<"
    assert f"{bound}{sign}(?" in read[0], "it begins behind the cursor, not at the first run"
    assert all(f"USING INDEX {index} " in s for index, s in zip(indexes, read, strict=True))
    if len(read) == 1:
        assert not any("TEMP B-TREE" in step for step in steps), steps


def test_postgresql_reads_a_page_from_the_index_of_its_order(migrated_url: str) -> None:
    async def story() -> None:
        async with session(migrated_url) as connection:
            await connection.execute(MANY_RUNS)
            await connection.execute(OPEN_ONES)
            await connection.execute("analyze perdure.run; analyze perdure.open_run")
            for wanted in orders():
                after = PushedCursor(500, "x", place_of(wanted.sort))
                name, values = question(wanted, None, after, 10)
                found = await connection.fetch(f"explain {Statements()[name]}", *values)
                steps = "\n".join(row[0] for row in found)
                used = re.findall(r"(Index Scan|Index Scan Backward) using (\w+) on run\b", steps)
                assert [index for _, index in used] == list(INDEXES[wanted.sort]), steps
                scan = "Index Scan" if wanted.ascending else "Index Scan Backward"
                assert used[0][0] == scan, steps
                assert "Seq Scan on run" not in steps, steps

    asyncio.run(story())


MANY_RUNS = """
insert into perdure.run (run_id, namespace, workflow_id, workflow_type, queue, run_number,
                         started_at, closed_at, status, version, state)
select 'r' || n, 'default', 'r' || n, 'w' || n % 7, 'q' || n % 5, 1, n,
       case when n % 50 > 0 then n + n % 97 end,
       case when n % 50 > 0 then 'completed' else 'running' end, 1, ''
  from generate_series(1, 5000) as n
"""


OPEN_ONES = """
insert into perdure.open_run (run_id, status, version, state)
select run_id, status, version, state
  from perdure.run
 where closed_at is null
"""


def place_of(sort: PushedSort) -> str | int | None:
    return {"started": None, "workflow": "w3", "app": "q3", "status": "succeeded"}.get(sort, 50)


def test_figures_count_push_runs_and_no_others(keep: Keep) -> None:
    """Runs that workers pull share the table, the namespace, the type and the queue."""
    pushed, pulled = a_crowd(), a_crowd()
    for run in pulled:
        run.workflow_id = f"pulled-{run.run_id}"
    abroad = a_run(namespace="abroad")
    abroad.workflow_id = abroad.run_id
    with keep.opened() as store:
        keep.commit(store, *pushed, *pulled, abroad)
        figures = keep.run(store.read_pushed_figures(PushedFilter(namespace="default"), 1))
        mail = PushedFilter(namespace="default", workflow="mail", app="bank", since=NOW + 1)
        few = keep.run(store.read_pushed_figures(mail, 10**18))

    counted = Counter((run.started_at, run.status.value) for run in pushed)
    assert {(one.stretch, one.status): one.runs for one in figures} == counted
    for one in figures:
        lasting = [
            run.closed_at - run.started_at
            for run in pushed
            if (run.started_at, run.status.value) == (one.stretch, one.status)
            and run.closed_at is not None
        ]
        assert (one.lasted, one.longest) == (
            (sum(lasting), max(lasting)) if lasting else (None, None)
        )
    wanted = [
        run
        for run in pushed
        if run.workflow_type == "mail" and run.queue == "bank" and run.started_at > NOW
    ]
    assert Counter({one.status: one.runs for one in few}) == Counter(
        run.status.value for run in wanted
    )
