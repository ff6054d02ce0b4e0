"""Programs whose local activities are prepared: their worker asks before it runs one."""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found,untyped-decorator,no-any-return"

from typing import Any

from durable_workflow import ActivityFailed, WorkflowCancelled, workflow

from tests.sdk.programs.steps import Context, Steps


@workflow.defn(name="prepared-errands")
class PreparedErrands:
    """Local work after markers, beside remote work, behind a wait, in a list; tried and failed."""

    def __init__(self) -> None:
        self.paid = 0

    @workflow.signal("pay")
    def pay(self, amount: int) -> None:
        self.paid += amount

    @workflow.query("paid")
    def how_much(self) -> int:
        return self.paid

    def run(self, ctx: Context, other: str) -> Steps:
        first = yield ctx.side_effect(lambda: 1)
        yield ctx.upsert_memo({"stage": "begun"})
        told = [(yield ctx.local_activity("add-one", [first], heartbeat_timeout=600))]
        told.append((yield ctx.schedule_activity("add-one", [told[-1]], queue=other)))
        yield ctx.wait_condition(lambda: self.paid >= 10, key="paid")
        told.append(
            (
                yield [
                    ctx.local_activity("add-one", [told[-1]]),
                    [ctx.sleep(0), ctx.schedule_activity("echo", ["remote"], queue=other)],
                    ctx.local_activity("beat", [3, 0.0, 0], heartbeat_timeout=600),
                ]
            )
        )
        for turn in range(2):
            yield ctx.wait_condition(lambda least=11 + turn: self.paid >= least, key="turn")
        policy = {"max_attempts": 2, "backoff_seconds": [1]}
        told.append((yield ctx.local_activity("flaky", [1], retry_policy=policy)))
        policy["non_retryable_error_types"] = ["BadCard"]
        try:
            yield ctx.local_activity("charge", ["stolen"], retry_policy=policy)
        except ActivityFailed as failure:
            told.append([str(failure), failure.exception_type])
        yield ctx.sleep(0)
        return told


@workflow.defn(name="prepared-tidy")
class PreparedTidy:
    """Stands at local work until it is asked to cancel; then tidies up with local work."""

    def run(self, ctx: Context, policy: str | None, alone: bool) -> Steps:
        yield ctx.side_effect(lambda: "before")
        options: dict[str, Any] = {} if policy is None else {"cancellation_policy": policy}
        work = ctx.local_activity("stay", ["-"], **options)
        try:
            yield work if alone else [work, ctx.sleep(3600)]
            return "stayed"
        except WorkflowCancelled as cancelled:
            with ctx.cancellation_shield():
                tidied = yield ctx.local_activity("add-one", [1], start_to_close_timeout=600)
                yield ctx.sleep(0)
            return [cancelled.context.reason, tidied]


@workflow.defn(name="prepared-watch")
class PreparedWatch:
    """Local work that waits for one light after the other, with something in between."""

    def run(self, ctx: Context, lights: list[str]) -> Steps:
        told = []
        for light in lights:
            yield ctx.side_effect(lambda: "on the look-out")
            told.append((yield ctx.local_activity("watch", [light])))
        return told


WORKFLOWS = (PreparedErrands, PreparedTidy, PreparedWatch)
ACTIVITIES = ()
