"""Start of runs: by a request, as a child, as a retried child, or as the next of a chain."""

from typing import Any

from msgspec import Struct, field

from perdure.core import instant
from perdure.core.limits import SECOND
from perdure.core.payload import Frame
from perdure.core.run.context import Context
from perdure.core.run.deadline import arm
from perdure.core.run.history import Raw, record
from perdure.core.run.lease import TaskState
from perdure.core.run.reframe import plain_envelope
from perdure.core.run.state import Parent, Run
from perdure.core.run.task import request_task


class StartRequest(Struct, frozen=True, kw_only=True):
    """A request to start a run. `plain` is input that came as JSON, not as a payload."""

    namespace: str
    workflow_id: str
    workflow_type: str
    queue: str
    arguments: bytes | None = None
    plain: bytes | None = None
    frame: Frame = Frame.VALUE
    business_key: str | None = None
    memo: dict[str, Any] = field(default_factory=dict)
    search_attributes: dict[str, Any] = field(default_factory=dict)
    execution_timeout_seconds: int | None = None
    run_timeout_seconds: int | None = None
    start_delay_seconds: int = 0
    priority: int = 5
    fairness_key: str | None = None
    fairness_weight: int = 1
    build_id: str | None = None
    trace: bytes | None = None
    late_signal_tasks_max: int | None = None
    signals_per_task_max: int | None = None


def start_run(request: StartRequest, ctx: Context) -> Run:
    """A new run of a workflow id that has none."""
    arguments = request.arguments
    if arguments is None:
        arguments = plain_envelope(request.plain or b"[]", request.frame)
    run = Run(
        run_id=ctx.ids.ulid(),
        namespace=request.namespace,
        workflow_id=request.workflow_id,
        workflow_type=request.workflow_type,
        queue=request.queue,
        run_number=1,
        started_at=ctx.now,
        business_key=request.business_key,
        frame=request.frame.value,
        plain_input=None if request.arguments is not None else request.plain or b"[]",
        memo=request.memo,
        search_attributes=request.search_attributes,
        priority=request.priority,
        fairness_key=request.fairness_key,
        fairness_weight=request.fairness_weight,
        build_id=request.build_id,
        trace=request.trace,
        arguments=arguments,
        late_signal_tasks_max=request.late_signal_tasks_max,
        signals_per_task_max=request.signals_per_task_max,
    )
    delay = request.start_delay_seconds * SECOND
    set_deadlines(
        run,
        ctx,
        execution=request.execution_timeout_seconds,
        run_timeout=request.run_timeout_seconds,
        delay=delay,
    )
    run.unsaved.created = True
    record_accepted(run, ctx)
    open_run(run, ctx, delay=delay)
    return run


def start_child(
    parent: Run,
    ctx: Context,
    *,
    run_id: str,
    workflow_id: str,
    workflow_type: str,
    queue: str,
    arguments: bytes,
    link: Parent,
    execution_timeout_seconds: int | None,
    run_timeout_seconds: int | None,
    trace: bytes | None = None,
) -> Run:
    """The first run of a child workflow."""
    child = Run(
        run_id=run_id,
        namespace=parent.namespace,
        workflow_id=workflow_id,
        workflow_type=workflow_type,
        queue=queue,
        run_number=1,
        started_at=ctx.now,
        frame=parent.frame,
        memo=dict(parent.memo),
        search_attributes=dict(parent.search_attributes),
        priority=parent.priority,
        fairness_key=parent.fairness_key,
        fairness_weight=parent.fairness_weight,
        build_id=parent.build_id,
        trace=trace or parent.trace,
        parent=link,
        arguments=arguments,
        late_signal_tasks_max=parent.late_signal_tasks_max,
        signals_per_task_max=parent.signals_per_task_max,
    )
    set_deadlines(child, ctx, execution=execution_timeout_seconds, run_timeout=run_timeout_seconds)
    child.unsaved.created = True
    record_started(child, ctx, {})
    open_run(child, ctx, delay=0)
    return child


def start_successor(
    run: Run,
    ctx: Context,
    *,
    workflow_type: str | None = None,
    queue: str | None = None,
    arguments: bytes | None = None,
    continued: bool,
    delay: int = 0,
    link: Parent | None = None,
    trace: bytes | None = None,
) -> Run:
    """The next run of the same id: continued as new, or a failed child tried again.

    The execution deadline spans the chain; the run deadline starts anew.
    """
    successor = Run(
        run_id=ctx.ids.ulid(),
        namespace=run.namespace,
        workflow_id=run.workflow_id,
        workflow_type=workflow_type or run.workflow_type,
        queue=queue or run.queue,
        run_number=run.run_number + 1,
        started_at=ctx.now,
        business_key=run.business_key,
        frame=run.frame,
        memo=dict(run.memo),
        search_attributes=dict(run.search_attributes),
        priority=run.priority,
        fairness_key=run.fairness_key,
        fairness_weight=run.fairness_weight,
        build_id=run.build_id,
        trace=trace or run.trace,
        parent=link or run.parent,
        served=run.served,
        continued_from_run_id=run.run_id if continued else None,
        keeps_signals=run.keeps_signals,
        validators=list(run.validators),
        arguments=run.arguments if arguments is None else arguments,
        late_signal_tasks_max=run.late_signal_tasks_max,
        signals_per_task_max=run.signals_per_task_max,
    )
    set_deadlines(
        successor,
        ctx,
        execution=run.execution_timeout_seconds,
        run_timeout=run.run_timeout_seconds,
        delay=delay,
    )
    successor.execution_deadline_at = run.execution_deadline_at
    arm(successor, run.execution_deadline_at)
    successor.unsaved.created = True
    retry: dict[str, Any] = {}
    if not continued and successor.parent is not None:
        retry = {
            "retry_attempt": successor.parent.retry_attempt,
            "retry_of_child_workflow_run_id": run.run_id,
        }
    record_started(successor, ctx, retry)
    open_run(successor, ctx, delay=delay)
    return successor


def set_deadlines(
    run: Run, ctx: Context, *, execution: int | None, run_timeout: int | None, delay: int = 0
) -> None:
    """Set the deadlines of a run, counted from when its code may begin."""
    run.execution_timeout_seconds = execution
    run.run_timeout_seconds = run_timeout
    begins_at = ctx.now + delay
    if execution is not None:
        run.execution_deadline_at = begins_at + execution * SECOND
    if run_timeout is not None:
        run.run_deadline_at = begins_at + run_timeout * SECOND
    arm(run, run.execution_deadline_at)
    arm(run, run.run_deadline_at)


def record_accepted(run: Run, ctx: Context, members: dict[str, Any] | None = None) -> None:
    """Record the first events of a run that a client requested."""
    command_id = ctx.ids.ulid()
    record(
        run,
        ctx,
        "StartAccepted",
        {
            "workflow_command_id": command_id,
            "workflow_instance_id": run.workflow_id,
            "workflow_run_id": run.run_id,
            "workflow_type": run.workflow_type,
            "outcome": "started_new",
        },
    )
    record_started(run, ctx, {"workflow_command_id": command_id, **(members or {})})


def record_started(run: Run, ctx: Context, members: dict[str, Any]) -> None:
    """Record `WorkflowStarted`."""
    parent = run.parent
    record(
        run,
        ctx,
        "WorkflowStarted",
        {
            "workflow_type": run.workflow_type,
            "workflow_instance_id": run.workflow_id,
            "workflow_run_id": run.run_id,
            "timestamp": instant.text(ctx.now),
            "payload_codec": run.codec,
            "input": Raw(run.arguments),
            "business_key": run.business_key,
            "memo": run.memo or None,
            "search_attributes": run.search_attributes or None,
            "execution_timeout_seconds": run.execution_timeout_seconds,
            "run_timeout_seconds": run.run_timeout_seconds,
            "execution_deadline_at": instant.text_or_none(run.execution_deadline_at),
            "run_deadline_at": instant.text_or_none(run.run_deadline_at),
            "parent_workflow_instance_id": parent and parent.workflow_id,
            "parent_workflow_run_id": parent and parent.run_id,
            "parent_sequence": parent and parent.sequence,
            "workflow_link_id": parent and parent.call_id,
            "child_call_id": parent and parent.call_id,
            "continued_from_run_id": run.continued_from_run_id,
            "redriven_from_run_id": run.redriven_from_run_id,
            **members,
        },
    )


def open_run(run: Run, ctx: Context, *, delay: int) -> None:
    """Request the first task of a new run, ready now or after a delay."""
    request_task(run, ctx)
    delay_start(run, ctx, delay)


def delay_start(run: Run, ctx: Context, delay: int) -> None:
    """Delay the first task of a new run."""
    if delay <= 0:
        return
    task = run.task
    assert task is not None
    task.state = TaskState.DELAYED
    task.available_at = ctx.now + delay
    run.unsaved.ready.clear()
    arm(run, task.available_at)
