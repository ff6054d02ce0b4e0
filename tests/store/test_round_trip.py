"""What is committed is what is loaded, down to the last field."""

from contextlib import nullcontext

import msgspec
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from perdure.core.fleet.worker import Worker
from perdure.core.run.inbox import Signal
from perdure.core.run.operation import Activity
from perdure.core.run.state import Run
from perdure.core.run.status import RunStatus
from perdure.store.interface import Changes, Conflict, Instance, Receipt, ReceiptKey
from tests.store.building import (
    NOW,
    a_run,
    a_task,
    a_worker,
    anything,
    fields_of,
    leased,
    strange_runs,
    with_activity,
    with_events,
)
from tests.store.keeping import Keep

thorough = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def test_every_field_of_a_run_comes_back(keep: Keep) -> None:
    with keep.opened() as store:

        @thorough
        @given(strange_runs())
        def check(run: Run) -> None:
            keep.run(store.commit(Changes(runs=[run])))
            expected = fields_of(run)

            (loaded,) = keep.run(store.load_runs([run.run_id]))

            assert fields_of(loaded) == expected
            assert loaded.unsaved.due_at == run.due_at
            new = (loaded.unsaved.created, loaded.unsaved.events, loaded.unsaved.ready)
            assert new == (False, [], {})

        check()


def test_every_field_of_a_changed_run_replaces_the_old_one(keep: Keep) -> None:
    with keep.opened() as store:

        @thorough
        @given(strange_runs(), strange_runs())
        def check(old: Run, new: Run) -> None:
            assume(new.is_closed or not old.is_closed)
            keep.commit(store, old)
            take_over_identity(old, new)

            keep.run(store.commit(Changes(runs=[new])))

            (loaded,) = keep.run(store.load_runs([old.run_id]))
            assert fields_of(loaded) == fields_of(new)

        check()


def take_over_identity(old: Run, new: Run) -> None:
    """Make one run the later state of another: what names a run never changes."""
    for name in ("run_id", "namespace", "workflow_id", "workflow_type", "queue", "run_number"):
        setattr(new, name, getattr(old, name))
    new.started_at, new.arguments = old.started_at, old.arguments
    new.version, new.unsaved.status = old.version, old.status
    if new.status is old.status:
        # A run closes with its status, and once.
        new.closed_at = old.closed_at
    new.unsaved.created = False
    new.unsaved.due_at = old.due_at
    new.unsaved.operations |= set(old.operations)
    new.unsaved.inbox |= {*old.inbox, *old.unread}
    new.unsaved.events = new.events
    new.events = old.events + new.events
    new.history_count = len(new.events)
    new.events_bytes = new.history_bytes = sum(map(len, new.events))


def test_every_field_of_a_worker_comes_back(keep: Keep) -> None:
    with keep.opened() as store:

        @thorough
        @given(anything(Worker))
        def check(worker: Worker) -> None:
            key = (worker.namespace, worker.worker_id)
            keep.run(store.commit(Changes(workers={key: worker})))

            assert worker in keep.run(store.load_workers())

            keep.run(store.commit(Changes(workers={key: None})))
            assert keep.run(store.load_workers()) == []

        check()


def test_every_field_of_a_receipt_comes_back(keep: Keep) -> None:
    texts = st.text(max_size=8)
    keys = st.builds(ReceiptKey, texts, texts, texts, texts)
    used: set[ReceiptKey] = set()
    with keep.opened() as store:

        @thorough
        @given(keys, anything(Receipt))
        def check(key: ReceiptKey, receipt: Receipt) -> None:
            assume(key not in used)
            used.add(key)
            keep.run(store.commit(Changes(receipts={key: receipt})))

            assert keep.run(store.find_receipts([key])) == {key: receipt}

        check()


def test_of_two_receipts_the_first_one_stays(keep: Keep) -> None:
    key = ReceiptKey("default", "order", "signal", "r1")
    first = Receipt("digest", "run", "command", "signal_received", NOW)
    with keep.opened() as store:
        keep.run(store.commit(Changes(receipts={key: first})))
        other = msgspec.structs.replace(first, command_id="another")
        # One process knows its receipts; where there are others, they may have been faster.
        with pytest.raises(Conflict) if store.is_shared else nullcontext():
            keep.run(store.commit(Changes(receipts={key: other})))

        assert keep.run(store.find_receipts([key])) == {key: first}


def test_a_receipt_is_renewed_where_it_stands(keep: Keep) -> None:
    key = ReceiptKey("default", "order", "signal", "r1")
    other, missing = key._replace(request_id="r2"), key._replace(request_id="r3")
    first = Receipt("digest", "run", "command", "signal_received", NOW)
    renewed = msgspec.structs.replace(first, run_id="next", outcome="rejected_at_close")
    with keep.opened() as store:
        keep.run(store.commit(Changes(receipts={key: first, other: first})))

        changed = {key: renewed, missing: renewed}
        keep.run(store.commit(Changes(runs=[a_run("some")], renewed_receipts=changed)))

        # What was pruned meanwhile does not come back.
        found = keep.run(store.find_receipts([key, other, missing]))
        assert found == {key: renewed, other: first}


def test_an_unknown_receipt_is_not_found(keep: Keep) -> None:
    key = ReceiptKey("default", "order", "signal", "r1")
    receipt = Receipt("digest", "run", "command", "signal_received", NOW)
    with keep.opened() as store:
        keep.run(store.commit(Changes(receipts={key: receipt})))

        others = [key._replace(request_id="r2"), key._replace(kind="cancel")]
        assert keep.run(store.find_receipts([*others, key])) == {key: receipt}


def test_everything_of_one_commit_survives_a_reopening(keep: Keep) -> None:
    run, worker = with_activity(a_run()), a_worker()
    run.inbox = {1: Signal("s", "c", "go", None, NOW)}
    run.unsaved.inbox = {1}
    key = ReceiptKey("default", "order", "signal", "r1")
    receipt = Receipt("digest", run.run_id, "command", "signal_received", NOW)
    changes = Changes(runs=[run], workers={("default", "w1"): worker}, receipts={key: receipt})
    with keep.opened() as store:
        keep.run(store.commit(changes))

    with keep.opened() as store:
        (loaded,) = keep.run(store.load_runs([run.run_id]))
        assert fields_of(loaded) == fields_of(run)
        assert keep.run(store.load_workers()) == [worker]
        assert keep.run(store.find_receipts([key])) == {key: receipt}
        assert keep.run(store.load_namespaces()) == ["default"]


def test_a_namespace_is_created_once(keep: Keep) -> None:
    with keep.opened() as store:
        keep.run(store.add_namespace("shop"))
        keep.run(store.add_namespace("shop"))
        keep.run(store.add_namespace("default"))
    with keep.opened() as store:
        assert keep.run(store.load_namespaces()) == ["default", "shop"]


def test_steps_and_signals_that_are_gone_are_gone_from_disk(keep: Keep) -> None:
    run = with_activity(with_activity(a_run(), 1), 2)
    run.inbox = {1: Signal("a", "c", "go", b"[]", NOW), 2: Signal("b", "c", "go", None, NOW)}
    run.unsaved.inbox = {1, 2}
    with keep.opened() as store:
        keep.commit(store, run)
        del run.operations[1], run.inbox[1]
        run.unsaved.operations, run.unsaved.inbox = {1}, {1}
        run.unsaved.ready = {1: False}

        keep.commit(store, run)

        (loaded,) = keep.run(store.load_runs([run.run_id]))
        assert list(loaded.operations) == [2]
        assert list(loaded.inbox) == [2]


def test_a_step_that_was_not_named_as_changed_is_left_alone(keep: Keep) -> None:
    run = with_activity(a_run())
    with keep.opened() as store:
        keep.commit(store, run)
        activity = run.operations[1]
        assert isinstance(activity, Activity)
        activity.attempt = 7

        keep.commit(store, run)

        (loaded,) = keep.run(store.load_runs([run.run_id]))
        assert loaded.operations[1] == msgspec.structs.replace(activity, attempt=0)


def test_runs_that_do_not_exist_are_left_out(keep: Keep) -> None:
    run = a_run()
    with keep.opened() as store:
        keep.commit(store, run)

        loaded = keep.run(store.load_runs(["nobody", run.run_id, "nothing"]))

        assert [one.run_id for one in loaded] == [run.run_id]
        assert keep.run(store.load_runs(["nobody"])) == []
        assert keep.run(store.read_run("nobody")) is None


def test_the_newest_run_of_an_id_is_the_current_one(keep: Keep) -> None:
    first, second, foreign = a_run(), a_run(), a_run(namespace="other")
    first.status, second.run_number = RunStatus.COMPLETED, 2
    here, there = Instance("default", "order"), Instance("other", "order")
    with keep.opened() as store:
        keep.commit(store, second, first, foreign)

        found = keep.run(store.find_current([here, there, Instance("default", "nothing")]))
        runs = keep.run(store.read_instance(here))

        assert found == {here: second.run_id, there: foreign.run_id}
        assert [run.run_id for run in runs] == [first.run_id, second.run_id]


def test_a_second_run_under_the_same_number_is_refused_as_a_whole(keep: Keep) -> None:
    with keep.opened() as store:
        keep.commit(store, a_run())
        twin, innocent = a_run(), a_run("innocent")

        with pytest.raises(Exception, match=r"(?i)unique"):
            keep.run(store.commit(Changes(runs=[innocent, twin])))

        assert keep.run(store.load_runs([twin.run_id, innocent.run_id])) == []
        keep.run(store.commit(Changes(runs=[innocent])))


def test_a_reader_sees_steps_and_owner_but_no_history(keep: Keep) -> None:
    run = leased(with_activity(a_run()), "w1", place=1)
    with keep.opened() as store:
        keep.commit(store, run)

        read = keep.run(store.read_run(run.run_id))

        assert read is not None
        assert read.operations == run.operations
        assert (read.status, read.task) == (RunStatus.PENDING, run.task)
        assert read.events == []


def test_a_long_history_stays_on_disk_but_its_arguments_are_loaded(keep: Keep) -> None:
    run = a_run(arguments=b'{"codec":"avro","blob":"wwE="}')
    with keep.opened() as store:
        keep.commit(store, run)
        keep.commit(store, with_events(run, 12, bytes_each=100_000))

        (loaded,) = keep.run(store.load_runs([run.run_id]))

        # A shared store brings the newest chunks along: other nodes changed the run meanwhile.
        kept = run.events[2:] if store.is_shared else []
        assert (loaded.events, loaded.events_bytes) == (kept, sum(map(len, kept)))
        assert loaded.events_first == 15 - len(kept)
        assert loaded.arguments == run.arguments
        assert keep.run(store.read_history(run.run_id, 0, 100)) == run.events


def test_a_task_without_an_owner_belongs_to_nobody(keep: Keep) -> None:
    run = a_run()
    run.task = a_task()
    with keep.opened() as store:
        keep.commit(store, run)

        assert keep.run(store.find_leases("default", "")) == []
