"""Child workflows, from the side of the parent run."""

from typing import Any

from perdure.core import instant
from perdure.core.limits import SECOND
from perdure.core.run.activity import backoff
from perdure.core.run.command import StartChild
from perdure.core.run.context import Context
from perdure.core.run.effect import StartRun
from perdure.core.run.history import Raw, held, raw, record, with_metadata
from perdure.core.run.message_stream import hand_over_streams
from perdure.core.run.operation import Child, Metadata
from perdure.core.run.settle import record_or_hold, resolve, settle
from perdure.core.run.start import start_child, start_successor
from perdure.core.run.state import Failure, Parent, Run
from perdure.core.run.status import RunStatus

_ENDINGS = {
    RunStatus.COMPLETED: "ChildRunCompleted",
    RunStatus.FAILED: "ChildRunFailed",
    RunStatus.CANCELLED: "ChildRunCancelled",
    RunStatus.TERMINATED: "ChildRunTerminated",
}


def open_child(
    run: Run, ctx: Context, command: StartChild, sequence: int, metadata: Metadata | None
) -> Child:
    """Start a child run and wait for it. The server chooses its ids."""
    child_run_id = ctx.ids.ulid()
    child = Child(
        sequence=sequence,
        metadata=metadata,
        identity=child_run_id,
        workflow_id=ctx.ids.ulid(),
        run_id=child_run_id,
        workflow_type=command.workflow_type,
        parent_close_policy=command.parent_close_policy,
        cancellation_policy=command.cancellation_policy,
        retry=command.retry,
    )
    run.operations[sequence] = child
    run.unsaved.operations.add(sequence)
    started = start_child(
        run,
        ctx,
        run_id=child_run_id,
        workflow_id=child.workflow_id,
        workflow_type=command.workflow_type,
        queue=command.queue or run.queue,
        arguments=command.arguments,
        link=Parent(run.run_id, run.workflow_id, sequence, child.call_id),
        execution_timeout_seconds=command.execution_timeout_seconds,
        run_timeout_seconds=command.run_timeout_seconds,
        trace=command.trace,
    )
    run.unsaved.effects.append(StartRun(started))
    opened = {
        **_identity(child),
        "child_run_number": child.run_number,
        "parent_close_policy": child.parent_close_policy,
        "cancellation_policy": child.cancellation_policy,
    }
    record(run, ctx, "ChildWorkflowScheduled", with_metadata(opened, child))
    record(run, ctx, "ChildRunStarted", with_metadata({**opened, **_timeouts(started)}, child))
    return child


def child_continued(run: Run, ctx: Context, child: Run, successor: Run) -> None:
    """Point the operation to the new run of the child; the parent continues to wait."""
    operation = _waiting_for(run, child)
    if operation is None:
        return
    operation.run_id = successor.run_id
    operation.run_number = successor.run_number
    record_or_hold(
        run,
        ctx,
        operation,
        "ChildRunStarted",
        {**_identity(operation), "child_run_number": successor.run_number},
    )
    settle(run, ctx)


def child_closed(run: Run, ctx: Context, child: Run, output: bytes | None) -> None:
    """Retry the child that closed if its policy allows it, else resolve the operation."""
    operation = _waiting_for(run, child)
    if operation is None:
        return
    if child.status is RunStatus.FAILED and _may_retry(operation, child):
        _retry(run, ctx, operation, child)
    else:
        _end(run, ctx, operation, child, output)
    settle(run, ctx)


def _waiting_for(run: Run, child: Run) -> Child | None:
    assert child.parent is not None
    operation = run.operations.get(child.parent.sequence)
    if run.is_closed or not isinstance(operation, Child) or operation.run_id != child.run_id:
        return None
    return operation


def _may_retry(operation: Child, child: Run) -> bool:
    policy, failure = operation.retry, child.failure
    if policy is None or failure is None or failure.non_retryable:
        return False
    if policy.attempts_max is not None and operation.attempt >= policy.attempts_max:
        return False
    deadline, closed_at = child.execution_deadline_at, child.closed_at
    if deadline is not None and closed_at is not None and deadline <= closed_at:
        return False
    names = policy.non_retryable_types
    return failure.exception_type not in names and failure.exception_class not in names


def _retry(run: Run, ctx: Context, operation: Child, child: Run) -> None:
    policy, link = operation.retry, child.parent
    assert policy is not None
    assert link is not None
    delay = backoff(policy, operation.attempt)
    operation.attempt += 1
    again = start_successor(
        child,
        ctx,
        continued=False,
        delay=delay,
        link=Parent(link.run_id, link.workflow_id, link.sequence, link.call_id, operation.attempt),
    )
    hand_over_streams(child, again, ctx, child.unsaved.unread_at_close)
    run.unsaved.effects.append(StartRun(again))
    failed_run_id, operation.run_id = operation.run_id, again.run_id
    operation.run_number = again.run_number
    record_or_hold(
        run,
        ctx,
        operation,
        "ChildRunStarted",
        {
            **_identity(operation),
            "child_run_number": again.run_number,
            "retry_attempt": operation.attempt,
            "retry_of_child_workflow_run_id": failed_run_id,
            "retry_backoff_seconds": delay // SECOND,
        },
    )


def _end(run: Run, ctx: Context, operation: Child, child: Run, output: bytes | None) -> None:
    failed = child.status is not RunStatus.COMPLETED
    payload: dict[str, Any] = {
        **_identity(operation),
        "child_run_number": child.run_number,
        "child_status": child.status.value,
        "closed_reason": child.closed_reason,
        "closed_at": instant.text_or_none(child.closed_at),
    }
    if failed:
        payload |= _failure(child.failure, child.close_message)
    else:
        payload |= {"output": Raw(output or b"null"), "payload_codec": child.codec}
    resolve(run, operation, held(_ENDINGS[child.status], payload, operation, failed=failed))


def _failure(failure: Failure | None, message: str | None) -> dict[str, Any]:
    if failure is None:
        return {"message": message}
    return {
        "failure_id": failure.failure_id,
        "failure_category": failure.category,
        "message": failure.message,
        "exception_type": failure.exception_type,
        "exception_class": failure.exception_class,
        "exception": raw(failure.exception),
    }


def _identity(child: Child) -> dict[str, Any]:
    # In a selection the identity of an operation never changes, so `child_workflow_run_id` stays
    # the id of the first run; elsewhere it is the run that the parent waits for now.
    run_id = child.identity if child.metadata is not None else child.run_id
    return {
        "sequence": child.sequence,
        "workflow_link_id": child.call_id,
        "child_call_id": child.call_id,
        "child_workflow_instance_id": child.workflow_id,
        "child_workflow_run_id": run_id,
        "child_workflow_type": child.workflow_type,
    }


def _timeouts(started: Run) -> dict[str, Any]:
    return {
        "child_status": started.status.value,
        "execution_timeout_seconds": started.execution_timeout_seconds,
        "run_timeout_seconds": started.run_timeout_seconds,
        "execution_deadline_at": instant.text_or_none(started.execution_deadline_at),
        "run_deadline_at": instant.text_or_none(started.run_deadline_at),
    }
