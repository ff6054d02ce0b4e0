"""Bindings of service operations to the handlers of their calls."""

from msgspec import Struct

from perdure.core.run.operation import ActivityTimeouts, RetryPolicy

WORKFLOW_RUN = "workflow_run"
ACTIVITY_EXECUTION = "activity_execution"


class Binding(Struct, frozen=True, kw_only=True):
    """A handler that starts a run per call. `name` is a workflow type, or an activity type."""

    kind: str
    name: str
    queue: str
    execution_timeout_seconds: int | None = None
    run_timeout_seconds: int | None = None
    retry: RetryPolicy | None = None
    timeouts: ActivityTimeouts = ActivityTimeouts()
