"""Polls from the outside: who may poll, how long, and what a repeated poll gets."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from enum import StrEnum

from msgspec import Struct

from perdure.core.fleet.routing import routing_names
from perdure.core.fleet.worker import Worker, require_poll_allowed
from perdure.core.limits import POLL_ANSWERS_MAX, SECOND
from perdure.core.rejection import Rejection, WorkerNotRegistered
from perdure.core.run.completion import TaskReport
from perdure.dispatch.delivery import ActivityDelivery, Delivery, WorkflowDelivery
from perdure.dispatch.pollers import ParkedPoller, PollerYard
from perdure.engine.activity_tasks import AskActivity, AttemptRef, ReleaseActivity
from perdure.engine.beat import Engine
from perdure.engine.granting import Granting
from perdure.engine.passing import ClaimTasks
from perdure.engine.workflow_tasks import PageWorkflowTask, ReleaseWorkflowTask
from perdure.store.interface import QueueKey


class PollStatus(StrEnum):
    """How a poll ended."""

    LEASED = "leased"
    EMPTY = "empty"
    NO_WORKFLOW_CAPABILITY = "no_workflow_capability"
    NO_ACTIVITY_CAPABILITY = "no_activity_capability"


class Poll(Struct, frozen=True, kw_only=True):
    """One poll, with the identity under which it may be repeated."""

    namespace: str
    worker_id: str
    queue: str
    kind: str
    timeout: int
    build_id: str | None = None
    request_id: str | None = None
    page_size: int


class PollAnswer(Struct, frozen=True):
    """A task, or why there is none."""

    status: PollStatus
    delivery: Delivery | None = None


PollKey = tuple[str, str, str, str, str]


class Polling:
    """Parks polls, and remembers the leases that recent polls were given."""

    def __init__(self, engine: Engine, yard: PollerYard, granting: Granting) -> None:
        self._engine = engine
        self._yard = yard
        self._granting = granting
        self._answers: OrderedDict[PollKey, asyncio.Future[PollAnswer]] = OrderedDict()
        yard.connect(self._look)
        self._looks: set[asyncio.Task[None]] = set()

    async def poll(self, poll: Poll, gone: Callable[[], Awaitable[None]]) -> PollAnswer:
        """Wait for a task. `gone` returns when the client has left; then nothing is leased."""
        worker = self._require_worker(poll)
        if poll.request_id is None:
            return await self._wait(poll, worker, gone)
        key = (poll.kind, poll.namespace, poll.queue, poll.worker_id, poll.request_id)
        earlier = self._answers.get(key)
        if earlier is not None:
            answer = await self._repeat(poll, earlier)
            if answer is not None:
                return answer
        return await self._lead(key, poll, worker, gone)

    def _require_worker(self, poll: Poll) -> Worker:
        worker = self._engine.workers.get((poll.namespace, poll.worker_id))
        if worker is None or worker.deregistered_at is not None:
            raise WorkerNotRegistered(
                f"worker {poll.worker_id} is not registered", worker_id=poll.worker_id
            )
        require_poll_allowed(worker, queue=poll.queue, build_id=poll.build_id)
        return worker

    async def _lead(
        self, key: PollKey, poll: Poll, worker: Worker, gone: Callable[[], Awaitable[None]]
    ) -> PollAnswer:
        future: asyncio.Future[PollAnswer] = asyncio.get_running_loop().create_future()
        self._answers[key] = future
        while len(self._answers) > POLL_ANSWERS_MAX:
            self._answers.popitem(last=False)
        try:
            answer = await self._wait(poll, worker, gone)
        except BaseException:
            future.cancel()
            self._forget(key, future)
            raise
        future.set_result(answer)
        if answer.delivery is None:
            self._forget(key, future)
        return answer

    def _forget(self, key: PollKey, future: "asyncio.Future[PollAnswer]") -> None:
        if self._answers.get(key) is future:
            del self._answers[key]

    async def _repeat(self, poll: Poll, earlier: "asyncio.Future[PollAnswer]") -> PollAnswer | None:
        """The answer of the poll that is repeated, if its lease still stands."""
        try:
            answer = await asyncio.shield(earlier)
        except asyncio.CancelledError:
            if earlier.cancelled():
                return None
            raise
        if answer.delivery is None:
            return answer
        return answer if await self._still_leased(poll.namespace, answer.delivery) else None

    async def _still_leased(self, namespace: str, delivery: Delivery) -> bool:
        try:
            if isinstance(delivery, WorkflowDelivery):
                report = TaskReport(
                    number=delivery.number, owner=delivery.owner, attempt=delivery.attempt
                )
                await self._engine.submit(
                    PageWorkflowTask(namespace, delivery.run_id, report, after=0, limit=1)
                )
                return True
            view = await self._engine.submit(AskActivity(_attempt(namespace, delivery)))
            return bool(view.can_continue)
        except Rejection:
            return False

    async def _wait(
        self, poll: Poll, worker: Worker, gone: Callable[[], Awaitable[None]]
    ) -> PollAnswer:
        workflow = poll.kind == "workflow"
        types = worker.workflow_types if workflow else worker.activity_types
        names = routing_names(types, worker.build_id)
        empty = PollStatus.EMPTY
        if not names:
            empty = (
                PollStatus.NO_WORKFLOW_CAPABILITY if workflow else PollStatus.NO_ACTIVITY_CAPABILITY
            )
        poller = ParkedPoller(
            key=QueueKey(poll.namespace, poll.queue, poll.kind),
            worker=worker,
            names=names,
            page_size=poll.page_size,
            on_abandoned=lambda delivery: self._give_back(poll.namespace, delivery),
        )
        self._yard.park(poller)
        try:
            delivery = await self._answered(poller, poll.timeout, gone)
        finally:
            self._yard.leave(poller)
            poller.answer.cancel()
        return PollAnswer(empty) if delivery is None else PollAnswer(PollStatus.LEASED, delivery)

    async def _answered(
        self, poller: ParkedPoller, timeout: int, gone: Callable[[], Awaitable[None]]
    ) -> Delivery | None:
        answer = poller.answer
        loop = asyncio.get_running_loop()
        watcher = asyncio.ensure_future(gone())

        def stop(_: object = None) -> None:
            if not answer.done():
                answer.cancel()

        watcher.add_done_callback(stop)
        # A poll with no time still gives the engine one chance to look at what is ready.
        patience = loop.call_later(max(timeout / SECOND, 0.02), stop)
        try:
            return await answer
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return None
        finally:
            patience.cancel()
            watcher.cancel()

    def _give_back(self, namespace: str, delivery: Delivery) -> None:
        """A lease that nobody is there to receive goes back at once."""
        if isinstance(delivery, WorkflowDelivery):
            self._engine.send(
                ReleaseWorkflowTask(
                    delivery.run_id,
                    number=delivery.number,
                    owner=delivery.owner,
                    attempt=delivery.attempt,
                )
            )
        else:
            self._engine.send(ReleaseActivity(_attempt(namespace, delivery)))

    def _look(self, key: QueueKey) -> None:
        task = asyncio.get_running_loop().create_task(self._claim(key), name=f"claim {key.queue}")
        self._looks.add(task)
        task.add_done_callback(self._looks.discard)

    async def _claim(self, key: QueueKey) -> None:
        try:
            await self._engine.submit(ClaimTasks(key, self._yard, self._granting))
        finally:
            self._yard.claimed(key)


def _attempt(namespace: str, delivery: ActivityDelivery) -> AttemptRef:
    return AttemptRef(
        namespace=namespace,
        run_id=delivery.run_id,
        sequence=delivery.sequence,
        attempt_id=delivery.attempt_id,
        owner=delivery.owner,
    )
