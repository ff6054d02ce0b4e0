"""Workers: what they may take, and what they may not change while they live."""

import pytest
from msgspec import structs

from perdure.core.fleet.routing import routing_name, routing_names
from perdure.core.fleet.worker import Worker, require_poll_allowed, require_same_definitions
from perdure.core.limits import WORKER_STALE_AFTER
from perdure.core.payload import Frame
from perdure.core.rejection import BuildIdMismatch, TaskQueueMismatch, WorkflowDefinitionChanged
from tests.support.clock import START
from tests.support.rule_harness import SDK_0_4, SDK_2, worker


@pytest.mark.parametrize(
    ("task_build", "worker_build", "takes"),
    [
        (None, None, True),
        (None, "b1", True),
        ("b1", "b1", True),
        ("b1", "b2", False),
        ("b1", None, False),
    ],
    ids=["both free", "a free task", "its own build", "another build", "no build"],
)
def test_a_worker_takes_free_tasks_and_those_of_its_build(
    task_build: str | None, worker_build: str | None, takes: bool
) -> None:
    wanted = routing_names(("order", "shipment"), worker_build)

    assert (routing_name("order", task_build) in wanted) is takes
    assert routing_name("refund", task_build) not in wanted


@pytest.mark.parametrize(("sdk", "frame"), [(SDK_2, Frame.VALUE), (SDK_0_4, Frame.WRAPPER)])
def test_the_sdk_of_a_worker_decides_its_frame(sdk: str, frame: Frame) -> None:
    assert worker(sdk_version=sdk).frame is frame


def test_a_worker_polls_the_queue_it_registered_for() -> None:
    require_poll_allowed(worker(), queue="orders", build_id=None)

    with pytest.raises(TaskQueueMismatch) as caught:
        require_poll_allowed(worker(), queue="other", build_id=None)
    assert caught.value.details == {
        "registered_task_queue": "orders",
        "requested_task_queue": "other",
    }


@pytest.mark.parametrize(
    ("registered", "polled", "refused"),
    [("b1", "b1", False), ("b1", "b2", True), ("b1", None, False), (None, "b1", False)],
)
def test_a_worker_polls_for_the_build_it_registered_with(
    registered: str | None, polled: str | None, refused: bool
) -> None:
    known = structs.replace(worker(), build_id=registered)

    if refused:
        with pytest.raises(BuildIdMismatch):
            require_poll_allowed(known, queue="orders", build_id=polled)
    else:
        require_poll_allowed(known, queue="orders", build_id=polled)


def test_a_worker_is_stale_when_it_was_silent_for_too_long() -> None:
    known = worker()

    assert known.is_active(START + WORKER_STALE_AFTER)
    assert not known.is_active(START + WORKER_STALE_AFTER + 1)
    assert not structs.replace(known, deregistered_at=START).is_active(START)


def _with(fingerprints: dict[str, str]) -> Worker:
    return structs.replace(
        worker(), fingerprints=fingerprints, workflow_types=[*fingerprints, "plain"]
    )


def test_a_living_worker_may_not_change_a_definition() -> None:
    known, offered = _with({"order": "f1"}), _with({"order": "f2"})

    with pytest.raises(WorkflowDefinitionChanged) as caught:
        require_same_definitions(known, offered, START)
    assert caught.value.details["workflow_type"] == "order"
    assert require_same_definitions(known, offered, START + 2 * WORKER_STALE_AFTER) == {
        "order": "f2"
    }


def test_a_living_worker_may_add_and_drop_definitions() -> None:
    known, offered = _with({"order": "f1", "old": "f0"}), _with({"order": "f1", "new": "f3"})

    assert require_same_definitions(known, offered, START) == {"order": "f1", "new": "f3"}


@pytest.mark.parametrize("missing", [None, "host", "process_id", "process_started_at"])
def test_a_process_is_known_by_three_facts_or_not_at_all(missing: str | None) -> None:
    facts = {"host": "h", "process_id": 7, "process_started_at": "2026"}
    told = {name: fact for name, fact in facts.items() if name != missing}

    identity = structs.replace(worker(), process_metrics=told).process_identity()

    assert identity == (("h", 7, "2026") if missing is None else None)
