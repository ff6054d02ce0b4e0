"""Lists of runs: newest first, filtered, in pages."""

from perdure.core.run.state import Run
from perdure.core.run.status import CLOSED, RunStatus
from perdure.store.interface import ListCursor, RunFilter, Store
from tests.store.building import NOW, a_run
from tests.store.keeping import Keep

HERE = RunFilter(namespace="default")


def a_fleet() -> list[Run]:
    """Runs of two types in all statuses, two of them for each instant; newest first."""
    runs = []
    for number, status in enumerate(RunStatus):
        for workflow_type in ("shop", "ship"):
            run = a_run(f"{workflow_type}-{number}", now=NOW + number, workflow_type=workflow_type)
            run.status = status
            runs.append(run)
    return sorted(runs, key=lambda run: (run.started_at, run.run_id), reverse=True)


def test_a_list_is_newest_first_and_keeps_to_its_namespace(keep: Keep) -> None:
    runs = a_fleet()
    with keep.opened() as store:
        keep.commit(store, *runs, a_run("foreign", namespace="x"))

        assert listed(keep, store, HERE) == [run.run_id for run in runs]


def test_pages_meet_even_between_runs_of_the_same_instant(keep: Keep) -> None:
    runs = a_fleet()
    with keep.opened() as store:
        keep.commit(store, *runs)
        for size in (1, 2, 3, 5):
            seen: list[str] = []
            cursor: ListCursor | None = None
            while page := keep.run(store.read_list(HERE, cursor, size)):
                assert len(page) <= size
                seen += [run.run_id for run in page]
                cursor = ListCursor(page[-1].started_at, page[-1].run_id)

            assert seen == [run.run_id for run in runs]


def test_a_run_that_starts_between_two_pages_does_not_move_them(keep: Keep) -> None:
    runs = a_fleet()
    with keep.opened() as store:
        keep.commit(store, *runs)
        first = keep.run(store.read_list(HERE, None, 4))

        keep.commit(store, a_run("newest", now=NOW + 100))

        cursor = ListCursor(first[-1].started_at, first[-1].run_id)
        second = keep.run(store.read_list(HERE, cursor, 100))
        assert [run.run_id for run in [*first, *second]] == [run.run_id for run in runs]


def test_filters_are_type_bucket_start_and_ids_and_all_must_fit(keep: Keep) -> None:
    runs = a_fleet()
    open_statuses = set(RunStatus) - CLOSED
    with keep.opened() as store:
        keep.commit(store, *runs)

        def expect(wanted: RunFilter, expected: list[Run]) -> None:
            assert listed(keep, store, wanted) == [run.run_id for run in expected]
            assert expected

        ships = [run for run in runs if run.workflow_type == "ship"]
        expect(RunFilter(namespace="default", workflow_type="ship"), ships)
        still_open = [run for run in runs if run.status in open_statuses]
        expect(RunFilter(namespace="default", bucket="running"), still_open)
        done = [run for run in runs if run.status is RunStatus.COMPLETED]
        expect(RunFilter(namespace="default", bucket="completed"), done)
        failed = [run for run in runs if run not in still_open and run not in done]
        expect(RunFilter(namespace="default", bucket="failed"), failed)
        late = [run for run in runs if run.started_at >= NOW + 3]
        expect(RunFilter(namespace="default", since=NOW + 3), late)
        some = ("shop-1", "ship-4", "nobody", "it's")
        named = [run for run in runs if run.workflow_id in some]
        expect(RunFilter(namespace="default", workflow_ids=some), named)
        here = RunFilter(namespace="default", workflow_ids=some, workflow_type="ship")
        expect(here, [run for run in named if run in ships])
        few = tuple(run.run_id for run in runs[2:5])
        expect(RunFilter(namespace="default", run_ids=few), runs[2:5])
        assert listed(keep, store, RunFilter(namespace="x", run_ids=few)) == []
        assert listed(keep, store, RunFilter(namespace="default", workflow_ids=())) == []
        few_open = [run for run in runs[2:5] if run in still_open]
        assert [run.run_id for run in few_open] == listed(
            keep, store, RunFilter(namespace="default", run_ids=few, bucket="running")
        )
        both = [run for run in still_open if run in ships]
        expect(RunFilter(namespace="default", workflow_type="ship", bucket="running"), both)


def test_a_list_sees_what_was_just_committed(keep: Keep) -> None:
    run = a_run()
    with keep.opened() as store:
        keep.commit(store, run)
        run.status = RunStatus.CANCELLED
        keep.commit(store, run)

        (seen,) = keep.run(store.read_list(HERE, None, 10))
        assert seen.status is RunStatus.CANCELLED


def listed(keep: Keep, store: Store, wanted: RunFilter) -> list[str]:
    return [run.run_id for run in keep.run(store.read_list(wanted, None, 1000))]
