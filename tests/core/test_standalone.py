"""Runs without code: the rules of standalone activities that no client can reach quickly."""

import pytest

from perdure.core import limits
from perdure.core.run.activity import Reported, complete_activity, fail_activity, lease_activity
from perdure.core.run.cause import next_cause
from perdure.core.run.context import Context
from perdure.core.run.operation import Activity, RetryPolicy
from perdure.core.run.standalone import ActivityRequest, start_standalone
from perdure.core.run.state import Run
from perdure.core.run.status import RunStatus
from perdure.identity import IdSource

NOW = 1_700_000_000_000_000


@pytest.fixture
def ctx() -> Context:
    return Context(NOW, IdSource(lambda: NOW, seed=1))


def a_host(ctx: Context, *, retry: RetryPolicy | None = None) -> tuple[Run, Activity]:
    request = ActivityRequest(
        namespace="default", activity_id="job", activity_type="charge", queue="q", retry=retry
    )
    run = start_standalone(request, ctx, before=None)
    activity = run.operations[1]
    assert isinstance(activity, Activity)
    return run, activity


def test_a_host_waits_for_its_activity_and_for_nothing_else(ctx: Context) -> None:
    run, activity = a_host(ctx)

    cause = next_cause(run)
    assert cause is not None
    assert (cause.kind, cause.name, cause.queue) == ("activity", "charge", "q")
    assert (run.task, run.task_count, run.status) == (None, 0, RunStatus.RUNNING)

    lease_activity(run, ctx, activity, owner="w1", timeout=limits.SECOND)
    complete_activity(run, ctx, activity, b'{"codec":"avro","blob":"x"}')

    assert (run.status, run.task, run.operations, run.due_at) == (
        RunStatus.COMPLETED,
        None,
        {},
        None,
    )
    assert next_cause(run) is None


def test_endless_retries_end_with_the_room_for_history(ctx: Context) -> None:
    run, activity = a_host(ctx, retry=RetryPolicy(attempts_max=None))
    lease_activity(run, ctx, activity, owner="w1", timeout=limits.SECOND)
    assert fail_activity(run, ctx, activity, Reported("no")) is True

    lease_activity(run, ctx, activity, owner="w1", timeout=limits.SECOND)
    run.history_count = ctx.bounds.history_events_max

    assert fail_activity(run, ctx, activity, Reported("no")) is False
    assert (run.status, run.hosted and run.hosted.attempt) == (RunStatus.FAILED, 2)
