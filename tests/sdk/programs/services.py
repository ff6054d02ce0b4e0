"""Programs that call operations of services, and those that handle such calls."""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found,untyped-decorator,no-any-return"

from typing import Any

from durable_workflow import workflow
from durable_workflow.errors import NexusOperationFailed

from tests.sdk.programs.steps import Context, Steps


@workflow.defn(name="clerk")
class Clerk:
    """Calls one operation between two steps of its own, and tells what became of the call."""

    def run(
        self, ctx: Context, endpoint: str, operation: str, arguments: list[Any], options: Any
    ) -> Steps:
        before = yield ctx.schedule_activity("echo", ["before"])
        try:
            call = yield ctx.call_nexus_service(
                endpoint, "desk", operation, arguments, **(options or {})
            )
        except NexusOperationFailed as failure:
            after = yield ctx.schedule_activity("echo", ["after"])
            return {
                "failed": str(failure),
                "outcome": failure.outcome,
                "type": failure.service_error_type,
                "steps": [before, after],
            }
        after = yield ctx.schedule_activity("echo", ["after"])
        return {"result": call.result, "status": call.status, "steps": [before, after]}


@workflow.defn(name="dispatcher")
class Dispatcher:
    """Has two operations begun and waits for neither."""

    def run(self, ctx: Context, endpoint: str, operation: str) -> Steps:
        first = yield ctx.start_nexus_operation(endpoint, "desk", operation, ["first"])
        second = yield ctx.start_nexus_operation(endpoint, "desk", operation, ["second"])
        yield ctx.schedule_activity("echo", ["after"])
        return [first.status, second.status, first.service_call_id != second.service_call_id]


@workflow.defn(name="night-clerk")
class NightClerk:
    """Calls an operation, begins another, and fails in the dark."""

    def run(self, ctx: Context, endpoint: str, operation: str, key: str) -> Steps:
        call = yield ctx.call_nexus_service(endpoint, "desk", operation, ["you"])
        yield ctx.start_nexus_operation(endpoint, "desk", operation, ["later"])
        seen = yield ctx.schedule_activity("look-around", [key])
        last = yield ctx.call_nexus_service(endpoint, "desk", operation, ["last"])
        return [call.result, seen, last.result]


@workflow.defn(name="refuser")
class Refuser:
    """Handles calls, and fails."""

    def run(self, ctx: Context, why: str) -> Steps:
        yield ctx.schedule_activity("echo", [why])
        raise ValueError(why)


WORKFLOWS = (Clerk, Dispatcher, NightClerk, Refuser)
ACTIVITIES = ()
