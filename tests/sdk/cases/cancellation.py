"""Cooperative cancellation: the code is asked, stops where it stands, and tidies up."""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found,untyped-decorator,no-any-return"

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from durable_workflow import Worker, WorkflowCancelled

from tests.sdk import programs
from tests.sdk.cases.registry import case
from tests.sdk.programs.beacons import beacon
from tests.sdk.replaying import kind
from tests.sdk.sdk_harness import SHUTDOWN_TIMEOUT, Run, Stage, working

PROCESS_PATIENCE = 100.0
"""How long it may take until a process of the SDK's own was started in time."""

KNOWN = ("tidy", "counting")


@case("cancel-timer", *KNOWN, worker=False)
async def cancel_timer(stage: Stage) -> None:
    async with cooperative(stage):
        run = await standing(stage, "timer", "TimerScheduled")
        await require_tidied(run)

    kinds = await run.kinds()
    delivered = kinds.index("CooperativeCancellationDelivered")
    assert kinds[delivered - 2 : delivered] == [
        "CooperativeCancellationRequested",
        "TimerCancelled",
    ]


@case("cancel-condition", *KNOWN, worker=False)
async def cancel_condition(stage: Stage) -> None:
    async with cooperative(stage):
        run = await standing(stage, "condition", "ConditionWaitOpened", timeout=600)
        for nudges in range(1, 4):
            await run.signal("nudge")
            await run.event("ConditionWaitOpened", times=nudges + 1)
        await require_tidied(run, nudges=3)


@case("cancel-behind-condition", "improvised-tidy", worker=False)
async def cancel_behind_condition(stage: Stage) -> None:
    """A condition that was opened again is over, also for code that is asked to cancel itself."""
    async with cooperative(stage):
        plan = [["gate", 1], ["gate", 600], ["sleep", 3600]]
        run = await stage.start("improvised-tidy", plan, [["effect", 1]])
        for opened in (2, 3):
            await run.event("ConditionWaitOpened", times=opened)
            await run.signal("knock")
        await run.event("SideEffectRecorded", times=2)
        await request(run)
        assert await run.result() == {"told": [False, True], "tidied": [1]}


@case("cancel-activity", *KNOWN, worker=False)
async def cancel_activity(stage: Stage) -> None:
    """By default an activity is let go at once; its worker kills what it runs, and says so."""
    async with cooperative(stage):
        run = await supervised(stage)
        await require_tidied(run)
    (ended,) = [e for e in await run.history() if kind(e) == "ActivityCancelled"]
    assert ended["payload"]["activity_type"] == "stay"


@case("cancel-activity-and-wait", *KNOWN, worker=False)
async def cancel_activity_and_wait(stage: Stage) -> None:
    """The code waits until the worker of the activity has killed it."""
    async with cooperative(stage):
        run = await supervised(stage, cancellation_policy="wait_cancellation_completed")
        await require_tidied(run)
    kinds = await run.kinds()
    delivered = kinds.index("CooperativeCancellationDelivered")
    assert kinds.index("CooperativeCancellationRequested") < delivered - 1
    # Its worker killed it, or its own heartbeat told it to stop.
    assert kinds[delivered - 1] in ("ActivityCancelled", "ActivityFailed")


@case("cancel-activity-of-another-worker", *KNOWN, worker=False)
async def cancel_activity_of_another_worker(stage: Stage) -> None:
    """A worker that was never asked learns of it from its heartbeats."""
    policy = "wait_cancellation_completed"
    async with cooperative(stage), stage.worker(f"{stage.queue}-other"):
        run = await standing(
            stage,
            "activity",
            "ActivityHeartbeatRecorded",
            key=stage.name,
            queue=f"{stage.queue}-other",
            cancellation_policy=policy,
        )
        await require_tidied(run)
        await beacon(f"{stage.name}:stopped").wait()


@case("cancel-activity-abandoned", *KNOWN, worker=False)
async def cancel_activity_abandoned(stage: Stage) -> None:
    """An abandoned activity goes on and nobody waits for it."""
    async with cooperative(stage), stage.worker(f"{stage.queue}-other"):
        run = await standing(
            stage,
            "activity",
            "ActivityHeartbeatRecorded",
            key=stage.name,
            queue=f"{stage.queue}-other",
            cancellation_policy="abandon",
            schedule_to_close_timeout=60,
        )
        await require_tidied(run)
        assert not beacon(f"{stage.name}:cancelled-early").is_set()


@case("cancel-child-abandoned", *KNOWN, worker=False)
async def cancel_child_abandoned(stage: Stage) -> None:
    async with cooperative(stage):
        run = await standing(stage, "child", "ChildRunStarted")
        child = await run.child()
        await require_tidied(run)
        assert await child.status() in ("pending", "running", "waiting")
        await request(child)
        await require_told(child)


@case("cancel-child-too", *KNOWN, worker=False)
async def cancel_child_too(stage: Stage) -> None:
    """The child is asked too, within the same budget; the parent does not wait for it."""
    async with cooperative(stage):
        run = await standing(stage, "child", "ChildRunStarted", cancellation_policy="try_cancel")
        child = await run.child()
        await child.event("TimerScheduled")
        await require_tidied(run)
        await require_told(child)
    asked, passed = [await asked_of(it) for it in (run, child)]
    assert passed["cancellation"]["root_request_id"] == asked["workflow_command_id"]
    assert passed["cancellation"]["parent_request_id"] == asked["workflow_command_id"]
    assert passed["workflow_command_id"] != asked["workflow_command_id"]
    assert passed["cleanup_deadline_at"] == asked["cleanup_deadline_at"]


@case("cancel-child-and-wait", *KNOWN, worker=False)
async def cancel_child_and_wait(stage: Stage) -> None:
    """The code waits until the child has tidied up, and its child before it."""
    policy = {"cancellation_policy": "wait_cancellation_completed"}
    async with cooperative(stage):
        run = await standing(stage, "child", "ChildRunStarted", **policy)
        child = await run.child()
        await child.event("TimerScheduled")
        await require_tidied(run)
    kinds = await run.kinds()
    asked = kinds.index("CooperativeCancellationRequested")
    assert kinds[asked + 1 : asked + 3] == ["ChildRunCompleted", "CooperativeCancellationDelivered"]
    assert await child.status() == "completed"


@case("cancel-parallel", *KNOWN, worker=False)
async def cancel_parallel(stage: Stage) -> None:
    policy = {"cancellation_policy": "wait_cancellation_completed"}
    async with cooperative(stage):
        run = await standing(stage, "parallel", "TimerFired", **policy)
        await require_tidied(run)


@case("cancel-selection", *KNOWN, worker=False)
async def cancel_selection(stage: Stage) -> None:
    policy = {"cancellation_policy": "wait_cancellation_completed"}
    async with cooperative(stage):
        run = await standing(stage, "select", "ChildRunStarted", **policy)
        await require_tidied(run)
    assert "SelectionResolved" not in await run.kinds()


@case("cancel-selection-handle", *KNOWN, worker=False)
async def cancel_selection_handle(stage: Stage) -> None:
    async with cooperative(stage):
        run = await standing(stage, "handle", "SelectionResolved")
        await require_tidied(run)


@case("cancel-first-loser", "improvised-tidy", worker=False)
async def cancel_first_loser(stage: Stage) -> None:
    """A loser that begins where its selection does is not decided with it."""
    async with cooperative(stage):
        loser = ["list", [["sleep", 3600], ["sleep", 3600]]]
        plan = [["select", {"a": loser, "b": ["sleep", 0]}, "await"]]
        run = await stage.start("improvised-tidy", plan, [["effect", 1]])
        await run.event("SelectionResolved")
        await request(run)
        assert await run.result() == {"told": [], "tidied": [1]}


@case("cancel-local-activity", *KNOWN, worker=False)
async def cancel_local_activity(stage: Stage) -> None:
    """The worker hears of it from the heartbeats of its task, and ends what it does itself."""
    async with cooperative(stage):
        run = await stage.start("tidy", "local", {"key": stage.name})
        await beacon(f"{stage.name}:here").wait()
        await require_tidied(run)


@case("cancel-early", *KNOWN, worker=False)
async def cancel_early(stage: Stage) -> None:
    """A run that no worker has seen yet is cancelled at its first call."""
    run = await stage.start("tidy", "timer", {})
    asked = await request(run)
    async with cooperative(stage):
        await require_told(run)
    assert "TimerCancelled" not in await run.kinds()
    assert asked["duplicate"] is False


@case("cancel-shielded", *KNOWN, "gate-keeper", worker=False)
async def cancel_shielded(stage: Stage) -> None:
    """Behind a shield the code goes on until it leaves it, signals and selections included."""
    async with cooperative(stage):
        run = await standing(stage, "shield", "ChildRunStarted")
        child = await run.child()
        await child.event("ConditionWaitOpened")
        await request(run)
        await child.signal("open")
        await run.event("ConditionWaitOpened")
        await run.signal("nudge")
        assert (await run.result())[:4] == ["before", "enough", True, 1]
    kinds = await run.kinds()
    assert kinds.index("CooperativeCancellationRequested") < kinds.index("SelectionResolved")
    assert kinds.index("SelectionResolved") < kinds.index("CooperativeCancellationDelivered")


@case("cancel-with-messages", *KNOWN, worker=False)
async def cancel_with_messages(stage: Stage) -> None:
    """Signals, updates and queries find the code also while it is being cancelled."""
    async with cooperative(stage) as worker:
        run = await standing(stage, "condition", "ConditionWaitOpened")
        await worker.stop()
    await run.signal("nudge")
    await request(run)
    await run.signal("nudge")
    async with cooperative(stage):
        told = await run.client.update_workflow(run.workflow_id, "nudged", wait_for="accepted")
        assert told["update_status"] in ("accepted", "completed")
        assert (await run.result())[:3] == ["before", "enough", True]
        told = await run.client.query_workflow(run.workflow_id, "nudges")
        assert told["result"] in (1, 2, 3)


@case("cancel-uncaught", "careless-sleeper", worker=False)
async def cancel_uncaught(stage: Stage) -> None:
    async with cooperative(stage):
        run = await stage.start("careless-sleeper")
        await run.event("TimerScheduled")
        asked = await request(run)
        cancelled = await run.failure(WorkflowCancelled)
        again = await request(run)

    assert "enough" in str(cancelled)
    assert await run.status() == "cancelled"
    assert again["duplicate"] is True
    assert again["cancellation_request"] == asked["cancellation_request"]


@case("cancel-deadline", "stubborn-sleeper", worker=False)
async def cancel_deadline(stage: Stage) -> None:
    async with cooperative(stage):
        run = await stage.start("stubborn-sleeper")
        await run.event("TimerScheduled")
        await request(run, cleanup_timeout_seconds=6)
        cancelled = await run.failure(WorkflowCancelled)

    assert "deadline" in str(cancelled)
    assert "CooperativeCancellationDelivered" in await run.kinds()


@case("cancel-nobody-asks", *KNOWN, worker=False)
async def cancel_nobody_asks(stage: Stage) -> None:
    """A worker that did not register for it never gets a task of the run; a deadline ends it."""
    async with stage.worker():
        run = await stage.start("tidy", "timer", {})
        await run.event("TimerScheduled")
        first, second = await asyncio.gather(
            request(run, cleanup_timeout_seconds=2), request(run, cleanup_timeout_seconds=3)
        )
        assert await run.closed() == "cancelled"
    assert sorted([first["duplicate"], second["duplicate"]]) == [False, True]
    assert first["cancellation_request"] == second["cancellation_request"]
    assert "CooperativeCancellationDelivered" not in await run.kinds()


@case("cancel-hands-over", *KNOWN, worker=False)
async def cancel_hands_over(stage: Stage) -> None:
    """A run that another kind of worker began is cancelled by one that knows how."""
    async with stage.worker():
        run = await stage.start("tidy", "timer", {})
        await run.event("TimerScheduled")
        await request(run)
        async with cooperative(stage):
            await require_told(run)


@contextlib.asynccontextmanager
async def cooperative(stage: Stage, *others: str) -> AsyncIterator[Worker]:
    """A worker whose code can be asked to cancel itself, and perhaps for other things."""
    worker = Worker(
        stage.client,
        task_queue=stage.queue,
        workflows=[programs.BY_NAME[name] for name in stage.known],
        activities=programs.ACTIVITIES,
        capabilities=["cooperative_cancellation", *others],
        # The SDK gives up a slot for every process that it could not see begin or end in time.
        max_concurrent_workflow_tasks=100,
        shutdown_timeout=SHUTDOWN_TIMEOUT,
    )
    failure: BaseException | None = None
    try:
        async with working(worker):
            try:
                yield worker
            except BaseException as error:
                failure = error
                raise
    except RuntimeError as error:
        # A machine so busy that the SDK could not start the process of an activity in time; the
        # attempt failed, and the next one was tried.
        if failure is not None or "callback stop" not in str(error):
            raise


async def standing(stage: Stage, where: str, event_type: str, **options: Any) -> Run:
    """A run that stands at a call."""
    run = await stage.start("tidy", where, options)
    await run.event(event_type)
    return run


async def supervised(stage: Stage, **options: Any) -> Run:
    """A run that stands at an activity, which runs in a process under supervision."""
    policy = {"max_attempts": 30, "backoff_seconds": [0]}
    options |= {"key": "-", "retry_policy": policy}
    run = await stage.start("tidy", "activity", options)
    await run.event("ActivityHeartbeatRecorded", patience=PROCESS_PATIENCE)
    return run


async def request(run: Run, **options: Any) -> dict[str, Any]:
    told = await run.client.request_workflow_cancellation(
        run.workflow_id, reason="enough", **options
    )
    assert told["accepted"] is True
    return dict(told)


async def require_tidied(run: Run, nudges: int = 0) -> None:
    await request(run)
    await require_told(run, nudges)


async def require_told(run: Run, nudges: int = 0) -> None:
    assert await run.result() == ["before", "enough", True, nudges, 2, [None, [1]]]


async def asked_of(run: Run) -> dict[str, Any]:
    event = await run.event("CooperativeCancellationRequested")
    return dict(event["payload"])
