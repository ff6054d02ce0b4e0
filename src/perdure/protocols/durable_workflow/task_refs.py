"""References to tasks and attempts, from the path and body of a worker request."""

from perdure.core.rejection import TaskNotFound
from perdure.core.run.completion import TaskReport
from perdure.core.run.state import TaskRef, parse_task_id
from perdure.engine.activity_tasks import AttemptRef
from perdure.protocols.durable_workflow import bodies
from perdure.web.message import Request


def require_ref(request: Request, kind: str) -> TaskRef:
    """The task that the path names: `w` is a workflow task, `a` an activity task."""
    ref = parse_task_id(request.params["task_id"], kind)
    if ref is None:
        raise TaskNotFound("no task of this namespace has this id")
    return ref


def report_of(ref: TaskRef, body: bodies.TaskLease) -> TaskReport:
    return TaskReport(number=ref.number, owner=body.lease_owner, attempt=body.workflow_task_attempt)


def attempt_ref(request: Request, body: bodies.AttemptLease) -> AttemptRef:
    ref = require_ref(request, "a")
    return AttemptRef(
        namespace=request.namespace,
        run_id=ref.run_id,
        sequence=ref.place,
        attempt_id=body.activity_attempt_id,
        owner=body.lease_owner,
    )
