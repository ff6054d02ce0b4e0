"""Traces: what a client captures reaches the interceptors of the workers that serve its run."""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found,untyped-decorator,no-any-return,misc"

from typing import Any

from durable_workflow import Client, PassthroughWorkerInterceptor, Worker

from tests.sdk import programs
from tests.sdk.cases.registry import case
from tests.sdk.sdk_harness import SHUTDOWN_TIMEOUT, Run, Stage, working


class Tracing:
    """A tracer of the application's own: every call is a new span of one trace."""

    def __init__(self) -> None:
        self.spans = 0

    def capture(self) -> dict[str, Any]:
        self.spans += 1
        parent = f"00-{'ab' * 16}-{self.spans:016x}-01"
        return {
            "schema": "durable-workflow.trace-context",
            "version": 1,
            "carrier": {"traceparent": parent, "baggage": "user=ada"},
        }


class Listener(PassthroughWorkerInterceptor):
    """Keeps what tasks tell of traces."""

    def __init__(self) -> None:
        self.tasks: list[dict[str, Any]] = []

    async def execute_workflow_task(self, context: Any, next: Any) -> Any:
        self.tasks.append(context.task)
        return await next(context)

    async def execute_activity(self, context: Any, next: Any) -> Any:
        self.tasks.append(context.task)
        return await next(context)


@case("trace-carried", "parent", "greeter", "counting", worker=False)
async def trace_carried(stage: Stage) -> None:
    listener = Listener()
    async with Client(stage.client.base_url, token="perdure", telemetry=Tracing()) as client:
        await client.get_cluster_info()
        worker = Worker(
            client,
            task_queue=stage.queue,
            workflows=[programs.BY_NAME[name] for name in stage.known],
            activities=programs.ACTIVITIES,
            interceptors=[listener],
            shutdown_timeout=SHUTDOWN_TIMEOUT,
        )
        async with working(worker):
            handle = await client.start_workflow(
                workflow_type="parent",
                workflow_id=stage.new_id(),
                task_queue=stage.queue,
                input=["ada"],
            )
            run = stage.adopt(
                Run(stage.client, stage.client.get_workflow_handle(handle.workflow_id))
            )
            assert (await run.result())["greeting"] == "hello, ada"

    by_run: dict[str, set[str]] = {}
    for task in listener.tasks:
        carrier = task["observability_context"]["carrier"]
        assert carrier["baggage"] == "user=ada"
        by_run.setdefault(task["run_id"], set()).add(carrier["traceparent"])
    assert [len(parents) for parents in by_run.values()] == [1, 1, 1], "one span for each run"
    assert len(set.union(*by_run.values())) == 3, "a child belongs to the span that started it"
