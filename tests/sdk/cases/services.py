"""Operations of services: called by clients and by programs, handled by programs and activities."""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found,untyped-decorator,no-any-return"

from typing import Any

from durable_workflow import WorkflowFailed
from durable_workflow.errors import NexusOperationFailed

from tests.sdk.cases.redriving import redrive
from tests.sdk.cases.registry import case
from tests.sdk.programs.beacons import beacon
from tests.sdk.release import since
from tests.sdk.replaying import kinds
from tests.sdk.sdk_harness import Run, Stage, until

SERVICE = "desk"


async def offer(stage: Stage, **operations: Any) -> str:
    """An endpoint of the case's own with these operations; its name."""
    path = f"/service-endpoints/{stage.name}"
    await stage.client._request("PUT", path, json={})
    await stage.client._request("PUT", f"{path}/services/{SERVICE}", json={})
    for name, handler in operations.items():
        kind = "activity_execution" if "activity_type" in handler else "workflow_run"
        body = {
            "handler_binding_kind": kind,
            "handler_binding": {"task_queue": stage.queue, **handler},
        }
        await stage.client._request(
            "PUT", f"{path}/services/{SERVICE}/operations/{name}", json=body
        )
    return stage.name


GREET = {"workflow_type": "greeter"}
REFUSE = {"workflow_type": "refuser"}
ADD = {"activity_type": "add-one"}


@case("service-called-by-client", "greeter", "refuser")
async def called_by_client(stage: Stage) -> None:
    endpoint = await offer(stage, greet=GREET, refuse=REFUSE, add=ADD)

    async def call(operation: str, *arguments: Any, **options: Any) -> Any:
        return await stage.client.execute_nexus_operation(
            endpoint, SERVICE, operation, list(arguments), **options
        )

    done = await call("greet", "you", wait_for="completed")
    assert (done.result, done.status, done.outcome) == ("hello, you", "completed", "completed")
    assert done.accepted
    assert (await call("add", 41)).result == 42
    begun = await call("greet", "later", mode="async", wait_for="accepted")
    assert (begun.status, begun.result) == ("started", None)
    first = await call("greet", "once", idempotency_key="k")
    again = await call("greet", "once", idempotency_key="k")
    assert (again.service_call_id, again.result) == (first.service_call_id, "hello, once")

    failure = await refused(call("refuse", "not today"))
    assert (str(failure), failure.outcome) == ("not today", "handler_failed")
    assert failure.service_error_type == "ValueError"
    unknown = await refused(call("unknown"))
    assert unknown.outcome == "rejected_not_found"
    conflict = await refused(call("greet", "twice", idempotency_key="k"))
    assert conflict.outcome == "rejected_conflict"
    silent = await call("refuse", "silently", raise_on_failure=False)
    assert silent.is_failure


@case("service-called-by-program", "clerk", "greeter", "refuser")
async def called_by_program(stage: Stage) -> None:
    endpoint = await offer(stage, greet=GREET, refuse=REFUSE, add=ADD)
    steps = ["before", "after"]

    greeted = await stage.start("clerk", endpoint, "greet", ["you"], None)
    added = await stage.start("clerk", endpoint, "add", [41], None)
    failed = await stage.start("clerk", endpoint, "refuse", ["not today"], None)
    unknown = await stage.start("clerk", endpoint, "unknown", [], None)

    assert await greeted.result() == {
        "result": "hello, you",
        "status": "completed",
        "steps": steps,
    }
    assert (await added.result())["result"] == 42
    told = await failed.result()
    assert (told["failed"], told["outcome"]) == ("not today", "handler_failed")
    assert (told["type"], told["steps"]) == ("ValueError", steps)
    told = await unknown.result()
    assert (told["outcome"], told["steps"]) == ("rejected_not_found", steps)
    if since("2.12.0"):
        names = kinds(await greeted.history())
        assert [name for name in names if name.startswith("Service")] == [
            "ServiceCallStarted",
            "ServiceCallCompleted",
        ]


@case("service-begun-by-program", "dispatcher", "greeter")
async def begun_by_program(stage: Stage) -> None:
    endpoint = await offer(stage, greet=GREET)

    run = await stage.start("dispatcher", endpoint, "greet")

    assert await run.result() == ["started", "started", True]
    path = f"/service-endpoints/{endpoint}/services/{SERVICE}/operations/greet/service-calls"

    async def look() -> Any:
        return (await stage.client._request("GET", path))["service_calls"]

    calls = await until(look, lambda found: {it["status"] for it in found} == {"completed"})
    assert len(calls) == 2


@case("service-redriven", "night-clerk", "greeter")
async def redriven(stage: Stage) -> None:
    endpoint = await offer(stage, greet=GREET)
    key = stage.new_id()
    run = await stage.start("night-clerk", endpoint, "greet", key)
    beacon(f"{key}:go").set()
    await run.failure(WorkflowFailed)
    beacon(f"{key}:lit").set()

    await redrive(run, run.run_id)

    assert await run.result() == ["hello, you", "seen", "hello, last"]
    path = f"/service-endpoints/{endpoint}/services/{SERVICE}/operations/greet/service-calls"
    calls = (await stage.client._request("GET", path))["service_calls"]
    assert len(calls) == 3, calls


@case("service-cancelled", "clerk", "sleeper")
async def cancelled(stage: Stage) -> None:
    endpoint = await offer(stage, sleep={"workflow_type": "sleeper"})
    run = await stage.start("clerk", endpoint, "sleep", [[3600]], None)
    await run.event("ServiceCallStarted")
    path = f"/service-endpoints/{endpoint}/services/{SERVICE}/operations/sleep/service-calls"
    (call,) = (await stage.client._request("GET", path))["service_calls"]
    handler = Run(stage.client, stage.client.get_workflow_handle(call["handler_workflow_id"]))
    await handler.event("TimerScheduled")

    await stage.client._request("POST", f"{path}/{call['service_call_id']}/cancel", json={})

    told = await run.result()
    assert told["outcome"] == "cancelled"
    assert await handler.closed() == "cancelled"

    left = await stage.start("clerk", endpoint, "sleep", [[3600]], None)
    await left.event("ServiceCallStarted")
    newest = (await stage.client._request("GET", path))["service_calls"][0]
    await left.handle.cancel(reason="enough")
    abandoned = Run(stage.client, stage.client.get_workflow_handle(newest["handler_workflow_id"]))
    assert await abandoned.closed() == "cancelled"


async def refused(calling: Any) -> Any:
    try:
        answer = await calling
    except NexusOperationFailed as failure:
        return failure
    raise AssertionError(f"it was not refused: {answer!r}")
