"""Why nobody takes a task that is ready: what is missing, from the first thing to the last."""

from typing import Any

import pytest
from msgspec import structs

from perdure.core.fleet.worker import Worker
from perdure.core.fleet.worker_availability import AwaitedTask, WorkerAvailability, availability_of
from perdure.core.limits import SECOND, WORKER_STALE_AFTER
from perdure.core.run.cause import awaited_task, next_cause
from tests.support.clock import START
from tests.support.commands import activity, complete_run, timer
from tests.support.rule_harness import NAMESPACE, QUEUE, Story
from tests.support.rule_harness import worker as a_worker

NOW = START + SECOND
TASK = AwaitedTask("workflow", NAMESPACE, QUEUE, "order", "order", None)
PINNED = TASK._replace(name="order@b1", build_id="b1")
JOB = AwaitedTask("activity", NAMESPACE, QUEUE, "charge", "charge", None)
COOPERATIVE = TASK._replace(name="order\x1d")


def worker(**told: Any) -> Worker:
    return structs.replace(a_worker(), **{"workflow_types": ["order"], **told})


SILENT = worker(heartbeat_at=NOW - WORKER_STALE_AFTER - 1)


@pytest.mark.parametrize(
    ("task", "workers", "expected"),
    [
        (TASK, [], WorkerAvailability.NOBODY),
        (TASK, [worker(workflow_types=["refund"])], WorkerAvailability.NOBODY),
        (TASK, [worker(queue="other")], WorkerAvailability.NOBODY),
        (TASK, [worker(namespace="other")], WorkerAvailability.NOBODY),
        (TASK, [worker(deregistered_at=START)], WorkerAvailability.NOBODY),
        (JOB, [worker()], WorkerAvailability.NOBODY),
        (JOB, [worker(activity_types=["charge"])], WorkerAvailability.PRESENT),
        (TASK, [SILENT, worker(workflow_types=[])], WorkerAvailability.SILENT),
        (PINNED, [worker(), worker(build_id="b2"), SILENT], WorkerAvailability.OTHER_BUILD),
        (PINNED, [worker(build_id="b1")], WorkerAvailability.PRESENT),
        (COOPERATIVE, [worker()], WorkerAvailability.UNABLE),
        (
            COOPERATIVE,
            [worker(capabilities=["cooperative_cancellation"])],
            WorkerAvailability.PRESENT,
        ),
        (TASK, [worker(build_id="drained")], WorkerAvailability.DRAINING),
        (TASK, [worker(build_id="drained"), worker()], WorkerAvailability.PRESENT),
        (TASK, [worker(), worker(build_id="drained")], WorkerAvailability.PRESENT),
    ],
)
def test_the_best_that_can_be_said_of_those_who_are_there(
    task: AwaitedTask, workers: list[Worker], expected: WorkerAvailability
) -> None:
    draining = {worker(build_id="drained").cohort}

    assert availability_of(workers, task, draining, NOW) is expected


# Of runs ------------------------------------------------------------------------------------------


def test_a_run_awaits_its_ready_task(story: Story) -> None:
    run = story.start(build_id="b1")

    assert awaited_task(run) == AwaitedTask(
        "workflow", run.namespace, run.queue, run.workflow_type, f"{run.workflow_type}@b1", "b1"
    )
    story.lease(run)
    assert awaited_task(run) is None


def test_a_run_awaits_its_ready_activity(story: Story) -> None:
    run = story.start()
    story.work(run, activity("charge", queue="elsewhere"))

    expected = AwaitedTask("activity", run.namespace, "elsewhere", "charge", "charge", None)
    assert awaited_task(run) == expected
    story.lease_activity(run, 1)
    assert awaited_task(run) is None


def test_a_run_that_sleeps_or_is_over_awaits_no_task(story: Story) -> None:
    asleep, over = story.start(), story.start("other")
    story.work(asleep, timer(5))
    story.work(over, complete_run())

    assert awaited_task(asleep) is None
    assert awaited_task(over) is None


@pytest.mark.parametrize(
    ("availability", "words"),
    [
        (WorkerAvailability.NOBODY, "has taken it: none is registered for it"),
        (
            WorkerAvailability.SILENT,
            "has taken it: none that is registered for it was active lately",
        ),
        (WorkerAvailability.OTHER_BUILD, "has taken it: no active worker is of build b1"),
        (
            WorkerAvailability.UNABLE,
            "has taken it: no active worker has the capabilities that it needs",
        ),
        (WorkerAvailability.DRAINING, "has taken it: every worker that could take it is draining"),
    ],
)
def test_the_cause_says_what_is_missing(
    story: Story, availability: WorkerAvailability, words: str
) -> None:
    run = story.start(build_id="b1")

    cause, plain = next_cause(run, availability), next_cause(run)

    assert cause is not None
    assert plain is not None
    assert words in cause.text
    assert cause.availability is availability
    assert structs.replace(cause, text=plain.text, availability=None) == plain


def test_the_cause_says_nothing_more_if_somebody_is_there(story: Story) -> None:
    run = story.start()

    assert next_cause(run, WorkerAvailability.PRESENT) == next_cause(run)
