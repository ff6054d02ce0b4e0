"""Programs of local activities: work that the workflow's own worker does."""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found,untyped-decorator,no-any-return"

from typing import Any

from durable_workflow import ActivityFailed, workflow

from tests.sdk.programs.steps import Context, Steps


@workflow.defn(name="local-errands")
class LocalErrands:
    """Local work before, between and after a remote activity, a timer and a wait."""

    def __init__(self) -> None:
        self.paid = False

    @workflow.signal("pay")
    def pay(self) -> None:
        self.paid = True

    def run(self, ctx: Context, key: str) -> Steps:
        told = [(yield ctx.local_activity("count-calls", [key]))]
        told.append((yield ctx.local_activity("add-one", [told[-1]])))
        told.append((yield ctx.schedule_activity("add-one", [told[-1]])))
        told.append((yield ctx.local_activity("add-one", [told[-1]])))
        yield ctx.sleep(0)
        told.append((yield ctx.local_activity("add-one", [told[-1]])))
        yield ctx.wait_condition(lambda: self.paid, key="paid")
        told.append((yield ctx.local_activity("add-one", [told[-1]])))
        return told


@workflow.defn(name="local-careful")
class LocalCareful:
    """One local activity whose failure is caught and told, then a timer."""

    def run(
        self, ctx: Context, activity_type: str, arguments: list[Any], options: dict[str, Any]
    ) -> Steps:
        try:
            told = yield ctx.local_activity(activity_type, arguments, **options)
        except ActivityFailed as failure:
            told = [str(failure), failure.exception_type, failure.non_retryable]
        yield ctx.sleep(0)
        return told


@workflow.defn(name="local-careless")
class LocalCareless:
    """One local activity whose failure is nobody's business."""

    def run(self, ctx: Context, activity_type: str, arguments: list[Any]) -> Steps:
        return (yield ctx.local_activity(activity_type, arguments))


WORKFLOWS = (LocalErrands, LocalCareful, LocalCareless)
ACTIVITIES = ()
