"""The workflow task of a run: at most one is pending or leased at any time."""

from perdure.core.fleet.routing import (
    cooperative_name,
    pass_name,
    prepared_name,
    routing_name,
    session_name,
    validation_name,
)
from perdure.core.limits import SECOND, WORKFLOW_TASK_BACKOFF_MAX
from perdure.core.payload import Frame
from perdure.core.rejection import (
    LeaseExpired,
    LeaseOwnerMismatch,
    RunClosed,
    TaskNotFound,
    TaskNotLeased,
    WorkflowTaskAttemptMismatch,
)
from perdure.core.run import reframe
from perdure.core.run.context import Context
from perdure.core.run.deadline import arm
from perdure.core.run.lease import DELAYED, LEASED, READY, Lease
from perdure.core.run.operation import Activity
from perdure.core.run.push import Push
from perdure.core.run.state import (
    PROGRESS,
    VALIDATION,
    WORKFLOW_TASK,
    Run,
    TaskKind,
    TaskReceipt,
    WorkflowTask,
)
from perdure.core.run.status import RunStatus
from perdure.core.run.stop_details import stop_details
from perdure.core.run.trace import drop_links

APPROVED = "approved"
REJECTED = "rejected"
VERDICTS = frozenset({APPROVED, REJECTED})
"""Outcomes of a validation."""

WAITING_FOR_CHILD = "cancellation_waiting_for_child"
WAITING_FOR_ACTIVITY = "cancellation_waiting_for_activity"
RELEASES = frozenset({WAITING_FOR_CHILD, WAITING_FOR_ACTIVITY})
"""Outcomes of a task whose worker must wait before it delivers a cancellation."""

LOCAL_RELEASE = "local_activity_released"
"""Outcome of a task whose lease ended because a local activity is retried."""


def request_task(
    run: Run,
    ctx: Context,
    resume: dict[str, str | int] | None = None,
    kind: TaskKind = PROGRESS,
) -> None:
    """Request a task, unless the run has one already.

    An update task that is not leased is replaced: the code continues first, so that handlers and
    validators see the same state as in every later replay.
    """
    task = run.task
    if task is not None:
        if task.kind is PROGRESS or kind is not PROGRESS:
            return
        if task.state is LEASED:
            return
        if task.state is READY and not run.unsaved.ready.get(WORKFLOW_TASK):
            # It is ready on disk.
            run.unsaved.withdrawn.add(WORKFLOW_TASK)
    run.task_count += 1
    run.task = WorkflowTask(
        number=run.task_count,
        available_at=ctx.now,
        resume={} if resume is None else resume,
        kind=kind,
    )
    run.unsaved.ready[WORKFLOW_TASK] = True


def hasten_task(run: Run, ctx: Context, resume: dict[str, str | int]) -> None:
    """Make the task ready at once, under its present name."""
    task = run.task
    if task is None or task.kind is not PROGRESS:
        request_task(run, ctx, resume)
        return
    assert task.state is not LEASED, "a leased task cannot be renamed"
    if task.state is READY and not run.unsaved.ready.get(WORKFLOW_TASK):
        # It is ready on disk under a name of pollers that may no longer lease it.
        run.unsaved.withdrawn.add(WORKFLOW_TASK)
    task.state = READY
    task.available_at = min(task.available_at, ctx.now)
    run.unsaved.ready[WORKFLOW_TASK] = True


def task_name(run: Run) -> str:
    """The name under which pollers find the run's workflow task."""
    if run.push is not None:
        return pass_name(run.workflow_type, run.push.pin)
    name, task = run.workflow_type, run.task
    if task is not None and task.kind is VALIDATION:
        name = validation_name(name, str(task.resume["update_name"]))
    if run.local_calls or run.cancellation is not None:
        name = _for_capable(run, name)
    return routing_name(name, run.build_id)


def workflow_name(run: Run) -> str:
    """The name of the capability that workers of the run need, without its build."""
    return _for_capable(run, run.workflow_type)


def _for_capable(run: Run, name: str) -> str:
    if run.local_calls:
        return prepared_name(name)
    is_cancelling = run.cancellation is not None and run.cancellation.event_id is not None
    return cooperative_name(name) if is_cancelling else name


def activity_place(run: Run, activity: Activity) -> tuple[str, str]:
    """The kind of queue in which an activity waits, and the name under which pollers find it."""
    name = routing_name(activity.activity_type, run.build_id)
    if activity.session is None:
        return "activity", name
    return "session", session_name(name, activity.session.session_id)


def lease_task(
    run: Run,
    ctx: Context,
    *,
    owner: str,
    timeout: int,
    frame: Frame | None,
    runtime: str,
    poll_id: str | None = None,
    validators: list[str] | None = None,
    cooperative: bool = False,
    replay_mode: str | None = None,
    prepares: bool = False,
) -> WorkflowTask:
    """Grant the ready workflow task to a worker. The history is frozen while the lease lasts.

    `frame` is the frame that the worker reads, for input that is still plain.
    `validators` are the updates that the code validates, if the worker reports them.
    """
    task = run.task
    assert task is not None
    assert task.state is READY, "only a ready task can be leased"
    if run.plain_input is not None:
        assert frame is not None
        _freeze_input(run, frame)
    if runtime != "python":
        run.keeps_signals = True
    if validators is not None:
        run.validators = validators
    task.state = LEASED
    task.attempt += 1
    task.lease = Lease(owner, ctx.now, ctx.now + timeout, poll_id)
    task.snapshot = run.history_count
    task.cooperative = cooperative
    task.replay_mode = replay_mode
    task.prepares = prepares
    if run.push is not None:
        _begin_pass(run, run.push)
    withdraw(run, WORKFLOW_TASK)
    arm(run, task.lease.expires_at)
    return task


def _begin_pass(run: Run, push: Push) -> None:
    """Note that the pass that is sent to a runner contains all finished steps."""
    push.is_fresh = False
    run.status = RunStatus.RUNNING
    if push.meters is not None:
        # If the pass is repeated, its budget is checked again.
        push.meters.cleared = 0


def require_lease(run: Run, ctx: Context, *, number: int, owner: str, attempt: int) -> WorkflowTask:
    """The leased task that a report names. Rejects other owners, expired leases, old attempts."""
    if not 1 <= number <= run.task_count:
        raise TaskNotFound(f"workflow task {number} of run {run.run_id} does not exist")
    task = run.task
    if task is not None and task.kind is VALIDATION and task.number == number:
        raise TaskNotFound(f"task {number} of run {run.run_id} is not a workflow task")
    if task is None or task.number != number or task.lease is None:
        if run.is_closed:
            # A task without a report was cancelled when the run closed.
            is_done = run.last_task is not None and number <= run.last_task.number
            raise RunClosed(
                f"run {run.run_id} is {run.status}",
                **stop_details(run),
                task_status="completed" if is_done else "cancelled",
                lease_owner=None,
                lease_expires_at=None,
            )
        is_done = run.last_task is not None and number <= run.last_task.number
        raise TaskNotLeased(
            f"workflow task {number} of run {run.run_id} is not leased",
            task_status="completed" if is_done else "ready",
        )
    lease = task.lease
    if lease.expires_at <= ctx.now:
        raise LeaseExpired(
            f"the lease of workflow task {number} has expired",
            task_status="leased",
            lease_owner=lease.owner,
            lease_expires_at=lease.expires_at,
        )
    if lease.owner != owner:
        raise LeaseOwnerMismatch(
            f"workflow task {number} is leased by {lease.owner}", lease_owner=lease.owner
        )
    if task.attempt != attempt:
        raise WorkflowTaskAttemptMismatch(
            f"workflow task {number} is at attempt {task.attempt}", current_attempt=task.attempt
        )
    return task


def find_receipt(
    run: Run, *, number: int, owner: str, attempt: int, verdict: bool = False
) -> TaskReceipt | None:
    """The receipt of the last task, or validation, if a report of it is repeated."""
    receipt = run.last_task
    if receipt is None or receipt.number != number:
        return None
    if (receipt.owner, receipt.attempt) != (owner, attempt):
        return None
    if (receipt.outcome in VERDICTS) is not verdict:
        return None
    if receipt.outcome in RELEASES or receipt.outcome == LOCAL_RELEASE:
        return None
    return receipt


def renew_task(run: Run, ctx: Context, task: WorkflowTask, timeout: int) -> int:
    """Extend the lease and return its new end."""
    assert task.lease is not None
    task.lease.expires_at = ctx.now + timeout
    arm(run, task.lease.expires_at)
    return task.lease.expires_at


def finish_task(run: Run, task: WorkflowTask, outcome: str) -> TaskReceipt:
    """Remove the task and store the receipt of its end."""
    assert task.lease is not None
    receipt = TaskReceipt(task.number, task.attempt, task.lease.owner, outcome, [])
    run.last_task = receipt
    run.task = None
    drop_links(run, task)
    return receipt


def retry_task(run: Run, ctx: Context, message: str) -> None:
    """Retry a task that its worker failed, after a backoff. The run stays open."""
    task = run.task
    assert task is not None
    task.failures += 1
    task.failure_message = message
    delay = min(SECOND << min(task.failures - 1, 16), WORKFLOW_TASK_BACKOFF_MAX)
    delay_task(run, ctx, task, delay)


def delay_task(run: Run, ctx: Context, task: WorkflowTask, delay: int) -> None:
    """Make the same task ready again after a delay."""
    task.lease = None
    task.state = DELAYED
    task.available_at = ctx.now + delay
    arm(run, task.available_at)


def release_task(run: Run, ctx: Context) -> None:
    """Make the task ready again after its lease ended without a report."""
    task = run.task
    assert task is not None
    task.lease = None
    task.state = READY
    task.available_at = ctx.now
    run.unsaved.ready[WORKFLOW_TASK] = True


def withdraw(run: Run, place: int) -> None:
    """Hide a task from pollers."""
    unsaved = run.unsaved
    if unsaved.ready.get(place) and place not in unsaved.withdrawn:
        # It became ready in this beat and is not on disk.
        del unsaved.ready[place]
    else:
        unsaved.ready[place] = False
        unsaved.withdrawn.add(place)


def _freeze_input(run: Run, frame: Frame) -> None:
    """Encode input that came as plain JSON for the first worker that reads it."""
    plain = run.plain_input
    assert plain is not None
    run.plain_input = None
    if run.frame == frame.value:
        reframe.seal_start(run)
        return
    run.frame = frame.value
    run.arguments = reframe.plain_envelope(plain, frame)
    reframe.rewrite_start(run)
