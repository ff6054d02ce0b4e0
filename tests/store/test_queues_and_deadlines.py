"""What waits on disk: ready tasks in order, leases by their owner, deadlines by their time."""

from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.core.run.state import Run
from perdure.store.interface import LeasedTask, QueueKey, ReadyTask, Store
from tests.store.building import NOW, a_run, leased, with_activity
from tests.store.keeping import Keep

WORKFLOWS = QueueKey("default", "q", "workflow")
ACTIVITIES = QueueKey("default", "q", "activity")


def test_ready_tasks_come_by_priority_then_by_time(keep: Keep) -> None:
    late = a_run("late", now=NOW + 2)
    early = a_run("early", now=NOW + 1)
    urgent = a_run("urgent", now=NOW + 3, priority=1)
    idle = a_run("idle", now=NOW, priority=9)
    with keep.opened() as store:
        keep.commit(store, late, idle, urgent, early)

        expected = [run.run_id for run in (urgent, early, late, idle)]
        assert found(keep, store, WORKFLOWS, {"shop"}) == expected
        assert found(keep, store, WORKFLOWS, {"shop"}, limit=2) == expected[:2]


def test_tasks_of_the_same_instant_come_in_a_fixed_order(keep: Keep) -> None:
    runs = [a_run(f"run {number}") for number in range(5)]
    with keep.opened() as store:
        keep.commit(store, *reversed(runs))

        assert found(keep, store, WORKFLOWS, {"shop"}) == sorted(run.run_id for run in runs)


def test_only_tasks_of_the_wanted_names_queue_kind_and_namespace_are_found(keep: Keep) -> None:
    mine = with_activity(a_run("mine"), 1)
    with_activity(mine, 2, queue="elsewhere")
    others = [a_run("a", workflow_type="other"), a_run("b", queue="x"), a_run("c", namespace="x")]
    with keep.opened() as store:
        keep.commit(store, mine, *others)

        assert found(keep, store, WORKFLOWS, {"shop"}) == [mine.run_id]
        assert found(keep, store, WORKFLOWS, {"nothing"}) == []
        assert keep.run(store.load_ready(ACTIVITIES, {"pay", "shop"}, 9)) == [
            ReadyTask(mine.run_id, 1, "pay")
        ]


def test_a_task_of_a_build_is_found_under_the_name_of_its_build(keep: Keep) -> None:
    pinned, free = with_activity(a_run("pinned", build_id="b1")), a_run("free")
    with keep.opened() as store:
        keep.commit(store, pinned, free)

        assert found(keep, store, WORKFLOWS, {"shop"}) == [free.run_id]
        assert found(keep, store, WORKFLOWS, {"shop@b1"}) == [pinned.run_id]
        assert found(keep, store, ACTIVITIES, {"pay@b1"}) == [pinned.run_id]


def test_a_withdrawn_task_is_not_found_and_a_returned_one_is_found_at_its_new_time(
    keep: Keep,
) -> None:
    first, second = a_run("first", now=NOW), a_run("second", now=NOW + 1)
    with keep.opened() as store:
        keep.commit(store, first, second)
        first.unsaved.ready = {0: False}
        keep.commit(store, first)
        assert found(keep, store, WORKFLOWS, {"shop"}) == [second.run_id]

        assert first.task is not None
        first.task.available_at = NOW + 2
        first.unsaved.ready = {0: True}
        keep.commit(store, first)

        assert found(keep, store, WORKFLOWS, {"shop"}) == [second.run_id, first.run_id]


def test_the_names_that_wait_are_known_at_the_start(keep: Keep) -> None:
    with keep.opened() as store:
        keep.commit(store, with_activity(a_run("a")), a_run("b"), a_run("c", build_id="b1"))

    with keep.opened() as store:
        names = keep.run(store.load_ready_names())

    assert sorted(names) == [(ACTIVITIES, "pay"), (WORKFLOWS, "shop"), (WORKFLOWS, "shop@b1")]


def test_a_name_of_any_letters_is_found(keep: Keep) -> None:
    """Types come from workers, which may call them what they like."""
    letters = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
    with keep.opened() as store:

        @settings(max_examples=50, deadline=None, derandomize=True, database=None)
        @given(letters, letters)
        def check(name: str, queue: str) -> None:
            run = a_run(f"run-{name}-{queue}", workflow_type=name, queue=queue)
            keep.commit(store, run)
            key = QueueKey("default", queue, "workflow")

            assert found(keep, store, key, {name, "another"}) == [run.run_id]

            run.unsaved.ready = {0: False}
            keep.commit(store, run)

        check()


def found(
    keep: Keep, store: Store, key: QueueKey, names: set[str], *, limit: int = 100
) -> list[str]:
    return [task.run_id for task in keep.run(store.load_ready(key, names, limit))]


def test_everything_that_a_worker_holds_is_found(keep: Keep) -> None:
    run = with_activity(with_activity(a_run("mine"), 1), 2)
    leased(leased(run, "w1"), "w1", place=2)
    other = leased(a_run("other"), "w2")
    foreign = leased(a_run("foreign", namespace="x"), "w1")
    foreign_step = leased(with_activity(a_run("step", namespace="x")), "w1", place=1)
    with keep.opened() as store:
        keep.commit(store, run, other, foreign, foreign_step)

        held = keep.run(store.find_leases("default", "w1"))

        assert sorted(held) == [LeasedTask(run.run_id, 0), LeasedTask(run.run_id, 2)]
        assert keep.run(store.find_leases("default", "nobody")) == []


def test_everybody_who_holds_something_is_known_at_the_start(keep: Keep) -> None:
    busy = leased(leased(with_activity(a_run("busy")), "w1"), "w2", place=1)
    foreign = leased(a_run("foreign", namespace="x"), "w1")
    with keep.opened() as store:
        keep.commit(store, busy, foreign, with_activity(a_run("idle")))

    with keep.opened() as store:
        owners = keep.run(store.load_lease_owners())

    assert sorted(owners) == [("default", "w1"), ("default", "w2"), ("x", "w1")]


def test_a_lease_that_ended_is_not_found(keep: Keep) -> None:
    run = leased(leased(with_activity(a_run()), "w1"), "w1", place=1)
    with keep.opened() as store:
        keep.commit(store, run)
        assert run.task is not None
        run.task.lease = None
        del run.operations[1]
        run.unsaved.operations = {1}
        keep.commit(store, run)

        assert keep.run(store.find_leases("default", "w1")) == []


def test_due_runs_come_in_the_order_of_their_deadlines(keep: Keep) -> None:
    runs = {at: armed(a_run(f"due {at}"), at) for at in (30, 10, 20, 40)}
    with keep.opened() as store:
        keep.commit(store, *runs.values())

        assert keep.run(store.find_next_due(0)) == 10
        due = [runs[at].run_id for at in (10, 20, 30)]
        assert keep.run(store.load_due(9, 100)) == []
        assert keep.run(store.load_due(30, 2)) == due[:2]
        # A shared store gives each of them to one node at a time.
        expected = due[2:] if store.is_shared else due
        assert keep.run(store.load_due(30, 100)) == expected


def test_a_moved_deadline_counts_and_a_lifted_one_does_not(keep: Keep) -> None:
    moved, lifted = armed(a_run("moved"), 10), armed(a_run("lifted"), 20)
    with keep.opened() as store:
        keep.commit(store, moved, lifted)
        keep.commit(store, armed(moved, 50), armed(lifted, None))

        assert keep.run(store.load_due(49, 100)) == []
        assert keep.run(store.find_next_due(0)) == 50


def test_nothing_is_due_in_an_empty_store(keep: Keep) -> None:
    with keep.opened() as store:
        assert keep.run(store.find_next_due(0)) is None
        assert keep.run(store.load_due(2**62, 10)) == []


def test_deadlines_survive_a_reopening(keep: Keep) -> None:
    run = armed(a_run(), 77)
    with keep.opened() as store:
        keep.commit(store, run)

    with keep.opened() as store:
        assert keep.run(store.find_next_due(0)) == 77
        (loaded,) = keep.run(store.load_runs([run.run_id]))
        assert loaded.unsaved.due_at == 77


def armed(run: Run, due_at: int | None) -> Run:
    run.due_at = due_at
    return run
