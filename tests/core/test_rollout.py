"""Rollouts: builds that are drained, that go on, and that get the new starts."""

from typing import Any

import pytest
from msgspec import structs

from perdure.core import limits
from perdure.core.fleet import rollout as rules
from perdure.core.fleet.rollout import (
    EMPTY_ROLLOUT,
    Intent,
    Rollout,
    build_workers,
    drain,
    intent_of,
    promote,
    require_open,
    resume,
)
from perdure.core.fleet.worker import Cohort, Worker, WorkerStatus, require_taking
from perdure.core.limits import SECOND, WORKER_STALE_AFTER
from perdure.core.rejection import (
    FleetIsDraining,
    MissingWorkerHeartbeat,
    NoCompatibleWorkers,
    Rejection,
    StructuralLimitExceeded,
    TaskQueueDraining,
    UnknownDeployment,
    WorkerDraining,
)
from tests.support.clock import START
from tests.support.rule_harness import NAMESPACE, QUEUE, SDK_2
from tests.support.rule_harness import worker as a_worker

NOW = START + SECOND
LONG_AGO = NOW - WORKER_STALE_AFTER - 1


def worker(build_id: str | None = None, *, worker_id: str = "w1", **told: Any) -> Worker:
    return structs.replace(a_worker(worker_id), **{"build_id": build_id, **told})


def silent(build_id: str | None = None) -> Worker:
    return worker(build_id, heartbeat_at=LONG_AGO)


def cohort(build_id: str | None) -> Cohort:
    return Cohort(NAMESPACE, QUEUE, build_id)


def drained(*builds: str | None) -> Rollout:
    rollout = EMPTY_ROLLOUT
    for build_id in builds:
        rollout = drain(rollout, build_id, START)
    return rollout


# Draining -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("build_id", ["b1", None])
def test_a_build_drains_until_it_is_resumed(build_id: str | None) -> None:
    draining = drain(EMPTY_ROLLOUT, build_id, START)

    assert draining.draining == [build_id]
    assert intent_of(draining, build_id).drained_at == START
    assert not intent_of(draining, "other").is_draining
    assert resume(draining, build_id) == EMPTY_ROLLOUT


def test_draining_twice_is_draining_once() -> None:
    once = drain(EMPTY_ROLLOUT, "b1", START)

    assert drain(once, "b1", NOW) == once


def test_resuming_what_goes_on_changes_nothing() -> None:
    once = drain(EMPTY_ROLLOUT, "b1", START)

    assert resume(once, "b2") == once


def test_builds_are_told_in_a_fixed_order() -> None:
    assert drained(None, "b2", "b1").draining == ["b1", "b2", None]


def test_there_is_an_end_to_drained_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "ROLLOUT_BUILDS_MAX", 2)
    full = drained("b1", "b2")

    with pytest.raises(StructuralLimitExceeded):
        drain(full, "b3", NOW)
    # What is there may still be changed, and room be made.
    assert drain(full, "b2", NOW) == full
    assert drain(resume(full, "b1"), "b3", NOW).draining == ["b2", "b3"]
    assert limits.ROLLOUT_BUILDS_MAX > 2


# Workers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "draining", "status"),
    [
        (worker("b1"), [], WorkerStatus.ACTIVE),
        (worker("b1"), [cohort("b1")], WorkerStatus.DRAINING),
        (worker("b1"), [cohort("b2"), cohort(None)], WorkerStatus.ACTIVE),
        (worker(None), [cohort(None)], WorkerStatus.DRAINING),
        (worker("b1"), [cohort("b1")._replace(queue="other")], WorkerStatus.ACTIVE),
        (worker("b1"), [cohort("b1")._replace(namespace="other")], WorkerStatus.ACTIVE),
        (silent("b1"), [cohort("b1")], WorkerStatus.STALE),
    ],
)
def test_the_status_of_a_worker_is_that_of_its_cohort_if_it_is_heard_of(
    known: Worker, draining: list[Cohort], status: WorkerStatus
) -> None:
    assert known.status(NOW, draining) is status


def test_a_worker_whose_build_drains_takes_nothing() -> None:
    require_taking(worker("b1"), {cohort("b2")})

    with pytest.raises(WorkerDraining) as caught:
        require_taking(worker("b1"), {cohort("b1")})
    assert caught.value.details == {
        "task": None,
        "poll_status": "draining",
        "worker_id": "w1",
        "task_queue": QUEUE,
        "registered_build_id": "b1",
        "worker_status": "draining",
        "drain_intent": "draining",
    }


# Starting -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rollout", "workers"),
    [
        (EMPTY_ROLLOUT, []),
        (EMPTY_ROLLOUT, [silent("b1")]),
        (drained("b1"), [worker("b1"), worker("b2")]),
        (drained("b1"), [worker(None)]),
        (drained(None), [worker("b1")]),
        (Rollout((Intent(build_id="b1", promoted_at=START),)), []),
    ],
)
def test_a_queue_is_open_while_somebody_can_take_what_begins(
    rollout: Rollout, workers: list[Worker]
) -> None:
    require_open(rollout, QUEUE, workers, NOW)


@pytest.mark.parametrize(
    ("rollout", "workers", "leaving", "stale"),
    [
        (drained("b1"), [worker("b1"), worker("b1")], 2, 0),
        (drained("b1", None), [worker("b1"), worker(None)], 2, 0),
        (drained("b1"), [worker("b1"), silent("b2")], 1, 1),
        (drained("b1"), [], 0, 0),
    ],
)
def test_a_drained_queue_without_an_active_worker_is_closed(
    rollout: Rollout, workers: list[Worker], leaving: int, stale: int
) -> None:
    with pytest.raises(TaskQueueDraining) as caught:
        require_open(rollout, QUEUE, workers, NOW)

    told = caught.value.details
    assert told["draining_build_ids"] == rollout.draining
    assert told["active_worker_count"] == 0
    assert told["draining_worker_count"] == leaving
    assert told["stale_worker_count"] == stale
    assert told["routing_status"] == told["drain_intent"] == "draining"


# Promoting ----------------------------------------------------------------------------------------


def test_one_build_is_promoted_and_the_one_before_it_no_longer() -> None:
    workers = [worker("b1"), worker("b2", worker_id="w2")]

    first = promote(EMPTY_ROLLOUT, cohort("b1"), START, workers=workers)
    second = promote(first, cohort("b2"), NOW, workers=workers)

    assert (first.selected, second.selected) == ("b1", "b2")
    assert second == Rollout((Intent(build_id="b2", promoted_at=NOW),))


def test_promoting_twice_is_promoting_once_also_when_nobody_is_left() -> None:
    once = promote(EMPTY_ROLLOUT, cohort("b1"), START, workers=[worker("b1")])

    assert promote(once, cohort("b1"), NOW, workers=[]) == once


def test_a_promoted_build_that_drains_gets_no_new_starts_until_it_goes_on() -> None:
    promoted = promote(EMPTY_ROLLOUT, cohort("b1"), START, workers=[worker("b1")])

    draining = drain(promoted, "b1", NOW)

    assert draining.selected is None
    assert resume(draining, "b1") == promoted


def test_promoting_keeps_what_is_drained() -> None:
    promoted = promote(drained("b1"), cohort("b2"), NOW, workers=[worker("b2")])

    assert promoted.draining == ["b1"]
    assert promoted.selected == "b2"


def test_the_unversioned_build_can_be_promoted() -> None:
    before = promote(EMPTY_ROLLOUT, cohort("b1"), START, workers=[worker("b1")])

    after = promote(before, cohort(None), NOW, workers=[silent(None)])

    assert after.selected is None
    assert intent_of(after, None).is_selected
    assert not intent_of(after, "b1").is_selected


@pytest.mark.parametrize(
    ("rollout", "build_id", "workers", "kinds"),
    [
        (EMPTY_ROLLOUT, "b1", [], [UnknownDeployment, NoCompatibleWorkers]),
        (EMPTY_ROLLOUT, "b1", [worker("b2")], [UnknownDeployment, MissingWorkerHeartbeat]),
        (EMPTY_ROLLOUT, "b1", [silent("b1")], [NoCompatibleWorkers]),
        (EMPTY_ROLLOUT, "b1", [silent("b1"), worker(None)], [MissingWorkerHeartbeat]),
        (drained("b1"), "b1", [worker("b1")], [FleetIsDraining]),
        (drained("b1"), "b1", [], [FleetIsDraining, NoCompatibleWorkers]),
        (EMPTY_ROLLOUT, None, [worker("b1")], [UnknownDeployment]),
        (drained(None), None, [worker(None)], [FleetIsDraining]),
    ],
)
def test_a_build_that_nobody_would_take_starts_for_is_not_promoted(
    rollout: Rollout, build_id: str | None, workers: list[Worker], kinds: list[type[Rejection]]
) -> None:
    with pytest.raises(kinds[0]) as caught:
        promote(rollout, cohort(build_id), NOW, workers=workers)

    told: Any = caught.value.details
    assert [each["reason"] for each in told["blockages"]] == [kind.reason for kind in kinds]
    assert all(each["message"] and each["expected_resolution"] for each in told["blockages"])
    assert told["outcome"] == told["control_plane_outcome"] == f"rejected_{kinds[0].reason}"
    assert told["rejection_reason"] == kinds[0].reason
    scope = {"namespace": NAMESPACE, "task_queue": QUEUE, "build_id": build_id}
    assert all(each["scope"] == scope for each in told["blockages"])
    assert scope.items() <= told.items()


# Looking ------------------------------------------------------------------------------------------


def test_builds_are_listed_by_what_can_be_expected_of_them() -> None:
    workers = [
        silent("old"),
        silent(None),
        worker("leaving"),
        worker("early"),
        worker("late", heartbeat_at=NOW),
        worker(None, worker_id="w2", queue=QUEUE),
    ]
    found = build_workers(drained("leaving", "gone"), workers, NOW)

    assert [(standing.intent.build_id, standing.status) for standing in found] == [
        ("late", "active"),
        ("early", "active"),
        # With one that lives and one that does not.
        (None, "active"),
        ("leaving", "draining"),
        ("old", "stale_only"),
        ("gone", "no_workers"),
    ]


def test_the_workers_of_a_build_are_counted_and_compared() -> None:
    one = worker("b1", fingerprints={"order": "f1", "refund": "f1"}, registered_at=START - 5)
    two = worker("b1", fingerprints={"order": "f2", "refund": "f1"}, runtime="go", sdk_version=None)
    three = silent("b1")

    [standing] = build_workers(EMPTY_ROLLOUT, [one, two, three], NOW)

    assert (standing.live, standing.stale) == (2, 1)
    assert standing.runtimes == {"python", "go"}
    assert standing.sdk_versions == {SDK_2}
    assert standing.first_seen_at == START - 5
    assert standing.last_heartbeat_at == START
    assert standing.fingerprints == {"order": {"f1", "f2"}, "refund": {"f1"}}
