"""An engine with everything around it, on a real file and a clock that we move; no socket.

Operations are played one by one, or several in one beat; polls park as they do for workers.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import msgspec

from perdure.core.fleet.worker import Worker
from perdure.core.run.activity import Reported
from perdure.core.run.command import Command, CompleteRun, ScheduleActivity, StartChild, StartTimer
from perdure.core.run.completion import TaskReport
from perdure.core.run.start import StartRequest
from perdure.core.run.state import Run
from perdure.dispatch.delivery import ActivityDelivery, Delivery, WorkflowDelivery
from perdure.dispatch.polls import Poll
from perdure.engine.activity_tasks import (
    AttemptRef,
    CompleteActivity,
    FailActivity,
    HeartbeatActivity,
    ReleaseActivity,
)
from perdure.engine.beat import Engine
from perdure.engine.fleet import RegisterWorker
from perdure.engine.operation import Operation
from perdure.engine.run_commands import CancelRun, CommandTarget, SignalRun, Started, StartWorkflow
from perdure.engine.updates import UpdateRun
from perdure.engine.workflow_tasks import (
    CompleteWorkflowTask,
    FailWorkflowTask,
    RenewWorkflowTask,
)
from perdure.server.assemble import Server
from perdure.server.settings import Settings
from perdure.store.interface import Instance, QueueKey
from tests.engine.faulty import FaultyStore
from tests.engine.invariants import Disk
from tests.support.clock import SECOND, FakeClock

NAMESPACE = "default"
QUEUE = "q"
PATIENCE = 90.0
"""Longer than anything here takes: reaching it is a failure, never a way to wait."""

WORKFLOWS = QueueKey(NAMESPACE, QUEUE, "workflow")
ACTIVITIES = QueueKey(NAMESPACE, QUEUE, "activity")


class Stage:
    """One server without its socket."""

    def __init__(self, path: Path, clock: FakeClock, **chosen: Any) -> None:
        self.clock = clock
        self.store = FaultyStore(path)
        settings = Settings(store=f"sqlite:///{path}", auth_driver="none", **chosen)
        self.server = Server(settings, store=self.store, clock=clock)

    @property
    def engine(self) -> Engine:
        return self.server.engine

    # Deciding ------------------------------------------------------------------------------------

    async def play(self, operation: Operation) -> Any:
        """Have one operation decided."""
        return await asyncio.wait_for(self.engine.submit(operation), PATIENCE)

    async def together(self, *operations: Operation) -> list[Any]:
        """Have several operations decided in one beat; what each got, also if it is an error."""
        submitted = (self.engine.submit(operation) for operation in operations)
        replies = asyncio.gather(*submitted, return_exceptions=True)
        return list(await asyncio.wait_for(replies, PATIENCE))

    async def start(self, workflow_id: str = "order", **wanted: Any) -> str:
        """Start a workflow and return its run."""
        started: Started = await self.play(start(workflow_id, **wanted))
        return started.run_id

    async def register(self, worker_id: str = "w1", **told: Any) -> None:
        await self.play(RegisterWorker(a_worker(worker_id, **told), "token"))

    # Polling -------------------------------------------------------------------------------------

    async def poll(
        self, kind: str = "workflow", worker_id: str = "w1", *, seconds: float = PATIENCE
    ) -> Delivery | None:
        """Wait for a task."""
        poll = Poll(
            namespace=NAMESPACE,
            worker_id=worker_id,
            queue=QUEUE,
            kind=kind,
            timeout=round(seconds * SECOND),
            page_size=500,
        )
        answer = await self.server.polling.poll(poll, lambda gone: None)
        return answer.delivery

    async def take(self, worker_id: str = "w1") -> WorkflowDelivery:
        """A workflow task that must be there, or come."""
        delivery = await self._poll_until_given("workflow", worker_id)
        assert isinstance(delivery, WorkflowDelivery)
        return delivery

    async def take_activity(self, worker_id: str = "w1") -> ActivityDelivery:
        delivery = await self._poll_until_given("activity", worker_id)
        assert isinstance(delivery, ActivityDelivery)
        return delivery

    async def _poll_until_given(self, kind: str, worker_id: str) -> Delivery | None:
        """As a worker polls: again, if its poll was ended early for another kind; see `turns`."""
        delivery = await self.poll(kind, worker_id)
        return delivery or await self.poll(kind, worker_id)

    async def park(self, kind: str = "workflow", worker_id: str = "w1") -> "asyncio.Task[Any]":
        """A poll that waits for a task."""
        waiting = self.server.parked_polls.count
        polling = asyncio.ensure_future(self.poll(kind, worker_id))
        await self.until(lambda: self.server.parked_polls.count > waiting)
        return polling

    async def work(self, *commands: Command, worker_id: str = "w1") -> WorkflowDelivery:
        """Take the next workflow task and complete it."""
        delivery = await self.take(worker_id)
        await self.play(completion(delivery, *commands))
        return delivery

    async def first_of(self, *polls: "asyncio.Task[Any]", seconds: float = 4) -> Any:
        """What the first poll that gets anything gets, or nothing; the others are let go."""
        await asyncio.wait(polls, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        answers = [poll.result() for poll in polls if poll.done()]
        for poll in polls:
            poll.cancel()
        await asyncio.wait(polls)
        return next((answer for answer in answers if answer is not None), None)

    # Waiting and looking -------------------------------------------------------------------------

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():  # noqa: ASYNC110 (nobody would tell us)
                await asyncio.sleep(0)

    async def idle(self) -> None:
        """Let everything that is under way come to its end."""
        for _ in range(50):
            await asyncio.sleep(0)

    async def load(self, run_id: str) -> Run:
        """A run as it is on disk, whatever the cache says."""
        with closing(Disk(self.store._path)) as disk:
            (run,) = [run for run in disk.runs() if run.run_id == run_id]
        return run

    async def events(self, run_id: str) -> list[dict[str, Any]]:
        return [
            msgspec.json.decode(event) for event in await self.store.read_history(run_id, 0, 9999)
        ]

    async def types(self, run_id: str) -> list[str]:
        return [event["event_type"] for event in await self.events(run_id)]

    def ready(self) -> list[tuple[object, ...]]:
        """Every task that the disk offers: its run and place."""
        return list(self.store.rows("select run_id, place from ready order by run_id, place"))


@asynccontextmanager
async def a_stage(
    path: Path, clock: FakeClock | None = None, *, deadlines: bool = False, **chosen: Any
) -> AsyncIterator[Stage]:
    """A stage whose engine beats; time only fires deadlines when it is asked to."""
    stage = Stage(path, clock or FakeClock(), **chosen)
    await stage.server.open()
    try:
        async with asyncio.TaskGroup() as group:
            beat = group.create_task(stage.engine.run())
            firing = None
            if deadlines:
                firing = group.create_task(stage.server.deadlines.run(stage.engine))
            yield stage
            stage.server.drain()
            if firing is not None:
                firing.cancel()
            stage.engine.stop()
            await beat
    finally:
        await stage.store.close()


def play(path: Path, story: Callable[[Stage], Coroutine[Any, Any, None]], **options: Any) -> None:
    """Play a story on a fresh stage."""

    async def whole() -> None:
        async with a_stage(path, **options) as stage:
            await story(stage)

    try:
        asyncio.run(whole())
    except ExceptionGroup as group:
        # Nothing but the story runs in the group most of the time: show what it says.
        raise (group.exceptions[0] if len(group.exceptions) == 1 else group) from None


# Operations ---------------------------------------------------------------------------------------


def start(
    workflow_id: str = "order", *, use_existing: bool = False, **wanted: Any
) -> StartWorkflow:
    values = {"workflow_type": "shop", "queue": QUEUE, "arguments": b'{"codec":"avro","blob":""}'}
    request = StartRequest(
        namespace=NAMESPACE,
        workflow_id=workflow_id,
        **{**values, **wanted},
    )
    return StartWorkflow(request, use_existing=use_existing)


def completion(delivery: WorkflowDelivery, *commands: Command) -> CompleteWorkflowTask:
    return CompleteWorkflowTask(NAMESPACE, delivery.run_id, report_of(delivery), commands)


def task_failure(delivery: WorkflowDelivery, message: str = "boom") -> FailWorkflowTask:
    report = report_of(delivery)
    return FailWorkflowTask(
        NAMESPACE, delivery.run_id, report, failure_type="Boom", message=message
    )


def renewal(delivery: WorkflowDelivery) -> RenewWorkflowTask:
    return RenewWorkflowTask(NAMESPACE, delivery.run_id, report_of(delivery), timeout=60 * SECOND)


def result(delivery: ActivityDelivery, value: bytes = b'{"codec":"avro","blob":"x"}') -> Operation:
    return CompleteActivity(ref_of(delivery), value)


def failure(delivery: ActivityDelivery, message: str = "boom", **members: Any) -> Operation:
    return FailActivity(ref_of(delivery), Reported(message, **members))


def heartbeat(delivery: ActivityDelivery) -> Operation:
    return HeartbeatActivity(ref_of(delivery), timeout=300 * SECOND, progress=None)


def release(delivery: ActivityDelivery, *, was_seen: bool = False) -> Operation:
    return ReleaseActivity(ref_of(delivery), was_seen=was_seen)


def signal(workflow_id: str = "order", name: str = "go", **target: Any) -> SignalRun:
    return SignalRun(_target(workflow_id, **target), name=name, arguments=None)


def update(workflow_id: str = "order", name: str = "add", **target: Any) -> UpdateRun:
    return UpdateRun(_target(workflow_id, **target), name=name, arguments=None)


def cancel(workflow_id: str = "order", **target: Any) -> CancelRun:
    return CancelRun(_target(workflow_id, **target), reason=None)


def _target(workflow_id: str, **target: Any) -> CommandTarget:
    return CommandTarget(instance=Instance(NAMESPACE, workflow_id), **target)


def report_of(delivery: WorkflowDelivery) -> TaskReport:
    return TaskReport(number=delivery.number, owner=delivery.owner, attempt=delivery.attempt)


def ref_of(delivery: ActivityDelivery) -> AttemptRef:
    return AttemptRef(
        namespace=NAMESPACE,
        run_id=delivery.run_id,
        sequence=delivery.sequence,
        attempt_id=delivery.attempt_id,
        owner=delivery.owner,
    )


# Commands and workers -----------------------------------------------------------------------------

DONE = CompleteRun(result=b'{"codec":"avro","blob":"done"}')


def an_activity(**values: Any) -> ScheduleActivity:
    return ScheduleActivity(activity_type="pay", arguments=b"null", **values)


def a_timer(seconds: int) -> StartTimer:
    return StartTimer(delay_seconds=seconds)


def a_child(**values: Any) -> StartChild:
    return StartChild(workflow_type="ship", arguments=b"null", **values)


def a_worker(worker_id: str = "w1", **told: Any) -> Worker:
    values: dict[str, Any] = {
        "namespace": NAMESPACE,
        "queue": QUEUE,
        "runtime": "python",
        "registered_at": 0,
        "heartbeat_at": 0,
        "registration_token": "",
        "sdk_version": "durable-workflow-python/2.12.0",
        "workflow_types": ["shop", "ship"],
        "activity_types": ["pay"],
    }
    return Worker(worker_id=worker_id, **{**values, **told})
