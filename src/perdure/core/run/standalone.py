"""Standalone activities: each has a run of its own, which has no code and ends with it."""

from msgspec import Struct

from perdure.core.payload import Frame
from perdure.core.rejection import InvalidRequest, UnknownSignal, UpdateRejected
from perdure.core.run.command import ScheduleActivity
from perdure.core.run.completion import open_activity
from perdure.core.run.context import Context
from perdure.core.run.deadline import arm, operation_due
from perdure.core.run.operation import Activity, ActivityTimeouts, RetryPolicy
from perdure.core.run.reframe import plain_envelope
from perdure.core.run.start import record_accepted
from perdure.core.run.state import Hosted, Run
from perdure.core.run.status import RunStatus

HOST_TYPE = "dw.standalone_activity"
"""The reserved workflow type of such runs."""


class ActivityRequest(Struct, frozen=True, kw_only=True):
    """A request to run an activity. `plain` is input that came as JSON."""

    namespace: str
    activity_id: str
    activity_type: str
    queue: str
    activity_class: str | None = None
    business_key: str | None = None
    arguments: bytes | None = None
    plain: bytes | None = None
    frame: Frame = Frame.VALUE
    retry: RetryPolicy | None = None
    timeouts: ActivityTimeouts = ActivityTimeouts()


def start_standalone(request: ActivityRequest, ctx: Context, *, before: Run | None) -> Run:
    """Start a run for one activity. `before` is the finished run of the same id, if any."""
    _require_free(request, before)
    plain = None if request.arguments is not None else request.plain or b"[]"
    arguments = request.arguments
    if arguments is None:
        assert plain is not None
        arguments = plain_envelope(plain, request.frame)
    run = Run(
        run_id=ctx.ids.ulid(),
        namespace=request.namespace,
        workflow_id=request.activity_id,
        workflow_type=HOST_TYPE,
        queue=request.queue,
        run_number=1 if before is None else before.run_number + 1,
        started_at=ctx.now,
        status=RunStatus.RUNNING,
        business_key=request.business_key,
        frame=request.frame.value,
        plain_input=plain,
        arguments=arguments,
    )
    run.unsaved.created = True
    record_accepted(run, ctx)
    command = ScheduleActivity(
        activity_type=request.activity_type,
        arguments=arguments,
        queue=request.queue,
        retry=request.retry,
        timeouts=request.timeouts,
    )
    sequence, run.next_sequence = run.next_sequence, run.next_sequence + 1
    activity = open_activity(run, ctx, command, sequence, None)
    run.hosted = Hosted(
        execution_id=activity.execution_id,
        activity_type=request.activity_type,
        activity_class=request.activity_class,
        timeouts=request.timeouts,
        retry=request.retry,
    )
    arm(run, operation_due(activity))
    return run


def _require_free(request: ActivityRequest, before: Run | None) -> None:
    if before is None:
        return
    if before.hosted is None:
        raise InvalidRequest("activity_id", f"{request.activity_id} is the id of a workflow")
    if not before.is_closed:
        raise InvalidRequest("activity_id", f"activity {request.activity_id} is still running")


def fit_arguments(run: Run, activity: Activity, frame: Frame) -> None:
    """Encode input that came as plain JSON for the worker of the first attempt.

    No worker replays the history of such a run, so the input in its start event stays unchanged.
    """
    plain = run.plain_input
    if plain is None or run.hosted is None:
        return
    run.plain_input = None
    if run.frame != frame.value:
        run.frame = frame.value
        activity.arguments = plain_envelope(plain, frame)


def refuse_signal(run: Run, name: str) -> None:
    """Refuse a signal to a run without code that could handle it."""
    what = _without_messages(run)
    if what is not None:
        raise UnknownSignal(
            f"{run.workflow_id} is a {what} and has no signal {name}",
            run_id=run.run_id,
            outcome="rejected_unknown_signal",
            rejection_reason="unknown_signal",
        )


def refuse_update(run: Run, name: str) -> None:
    """Refuse an update to a run without code that could handle it."""
    what = _without_messages(run)
    if what is not None:
        raise UpdateRejected(
            f"{run.workflow_id} is a {what} and has no update {name}",
            run_id=run.run_id,
            outcome="rejected_unknown_update",
            rejection_reason="unknown_update",
        )


def _without_messages(run: Run) -> str | None:
    """The description of a run that takes no messages, none for other runs."""
    if run.hosted is not None:
        return "standalone activity"
    return None if run.push is None else "run of a runner, which waits for events,"
