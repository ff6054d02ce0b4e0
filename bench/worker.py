"""A lean worker: parked pollers that lease, decide by counting, and complete.

It keeps the protocol of a real worker (register, poll, load the history it needs, complete) and
none of the cost of running workflow code.
"""

import asyncio
import itertools
import secrets
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Final, Protocol

from bench import wire
from bench.client import Connection
from bench.server import Server

POLL_TIMEOUT: Final = 30
HEARTBEAT_INTERVAL: Final = 20.0
PAGE_SIZE_DEFAULT: Final = 500

Plan = Callable[[int], bytes]
"""From the number of completed activities to the commands of the next completion."""

Program = Callable[[bytes], Plan]
"""From the queue of a worker to the plan of its workflows."""


def sequence_of(activities: int) -> Program:
    """A workflow that runs activities one after another."""

    def on_queue(queue: bytes) -> Plan:
        schedule = wire.schedule_activity(queue)
        return lambda completed: schedule if completed < activities else wire.COMPLETE_RUN

    return on_queue


def fan_out_of(activities: int) -> Program:
    """A workflow that runs all its activities as one parallel group."""

    def on_queue(queue: bytes) -> Plan:
        schedule = wire.schedule_parallel_activities(queue, activities)
        return lambda completed: schedule if completed < activities else wire.COMPLETE_RUN

    return on_queue


class History(Protocol):
    """How a worker learns what has happened in a run."""

    page_size: int

    async def count_completed(
        self, connection: Connection, worker_id: bytes, task: wire.WorkflowTask
    ) -> int:
        """The number of activities that the run of a leased task has completed."""


class FullHistory:
    """Reads every page of the history at every task, as a worker without a cache must."""

    def __init__(self, page_size: int = PAGE_SIZE_DEFAULT) -> None:
        self.page_size = page_size

    async def count_completed(
        self, connection: Connection, worker_id: bytes, task: wire.WorkflowTask
    ) -> int:
        completed = _completed_among(task.history_events)
        token = task.next_history_page_token
        while token:
            page = await _load_page(connection, worker_id, task=task, token=token)
            completed += _completed_among(page.history_events)
            token = page.next_history_page_token
        return completed


class TailHistory:
    """Remembers each run and asks only for what followed, as a worker with a cache would."""

    page_size = 1

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int]] = {}

    async def count_completed(
        self, connection: Connection, worker_id: bytes, task: wire.WorkflowTask
    ) -> int:
        sequence, completed = self._seen.get(task.run_id, (0, 0))
        token: str | None = wire.token_after(sequence)
        while token:
            page = await _load_page(connection, worker_id, task=task, token=token)
            completed += _completed_among(page.history_events)
            if page.history_events:
                sequence = page.history_events[-1].sequence
            token = page.next_history_page_token
        self._seen[task.run_id] = sequence, completed
        return completed


async def _load_page(
    connection: Connection, worker_id: bytes, *, task: wire.WorkflowTask, token: str
) -> wire.HistoryPage:
    reply = await connection.send(wire.load_history_page(task, worker_id, token))
    return wire.decode_history_page(reply)


def _completed_among(events: Iterable[wire.Event]) -> int:
    return sum(event.event_type == "ActivityCompleted" for event in events)


class Worker:
    """A registered worker on a queue of its own; runs workflows and knows when they complete."""

    def __init__(self, server: Server, program: Program, history: History) -> None:
        # Random, because a database given by URL may still hold what an earlier bench left behind.
        self.worker_id = b"bench-" + secrets.token_hex(4).encode()
        self.queue = self.worker_id
        self._server = server
        self._plan = program(self.queue)
        self._history = history
        self._numbers = itertools.count(1)
        self.activities_completed = 0
        self._expected: dict[str, asyncio.Future[None]] = {}
        # Cleared, nobody sends anything; what is parked at the server stays there.
        self.may_send = asyncio.Event()
        self.may_send.set()

    async def run_workflow(self, connection: Connection) -> bytes:
        """Start a workflow and wait until its last task is completed; returns the start's reply."""
        workflow_id = b"%b-%d" % (self.worker_id, next(self._numbers))
        done = asyncio.get_running_loop().create_future()
        self._expected[workflow_id.decode()] = done
        await self._wait_for_leave()
        reply = await connection.send(wire.start(workflow_id, self.queue))
        await done
        return reply

    async def register(self, slots: int) -> None:
        """Announce the worker to the server."""
        await self._call_once(wire.register(self.worker_id, self.queue, slots=slots))

    async def heartbeat_forever(self) -> None:
        """Keep the registration fresh through the longest measurements."""
        while True:
            await asyncio.sleep(HEARTBEAT_INTERVAL)
            await self._call_once(wire.heartbeat(self.worker_id))

    async def run_workflow_tasks(self) -> None:
        """Poll, decide and complete workflow tasks until cancelled."""
        connection = self._server.connect()
        try:
            while True:
                task = await self._lease_workflow_task(connection)
                if task is not None:
                    await self._wait_for_leave()
                    await self._complete_workflow_task(connection, task)
        finally:
            connection.close()

    async def run_activity_tasks(self) -> None:
        """Poll and complete activity tasks until cancelled."""
        connection = self._server.connect()
        try:
            while True:
                task = await self._lease_activity_task(connection)
                if task is not None:
                    await self._wait_for_leave()
                    await connection.send(wire.complete_activity_task(task, self.worker_id))
                    self.activities_completed += 1
        finally:
            connection.close()

    async def _lease_workflow_task(self, connection: Connection) -> wire.WorkflowTask | None:
        await self._wait_for_leave()
        request = wire.poll_workflow_task(
            self.worker_id,
            self.queue,
            poll_id=self._next_poll_id(),
            timeout_seconds=POLL_TIMEOUT,
            page_size=self._history.page_size,
        )
        return wire.decode_workflow_poll(await connection.send(request)).task

    async def _lease_activity_task(self, connection: Connection) -> wire.ActivityTask | None:
        await self._wait_for_leave()
        request = wire.poll_activity_task(
            self.worker_id,
            self.queue,
            poll_id=self._next_poll_id(),
            timeout_seconds=POLL_TIMEOUT,
        )
        return wire.decode_activity_poll(await connection.send(request)).task

    async def _complete_workflow_task(
        self, connection: Connection, task: wire.WorkflowTask
    ) -> None:
        completed = await self._history.count_completed(connection, self.worker_id, task)
        commands = self._plan(completed)
        await connection.send(wire.complete_workflow_task(task, self.worker_id, commands))
        if commands is wire.COMPLETE_RUN:
            done = self._expected.pop(task.workflow_id, None)
            if done is not None and not done.done():
                done.set_result(None)

    async def _wait_for_leave(self) -> None:
        if not self.may_send.is_set():
            await self.may_send.wait()

    def _next_poll_id(self) -> bytes:
        return b"%b-%d" % (self.worker_id, next(self._numbers))

    async def _call_once(self, request: bytes) -> None:
        connection = self._server.connect()
        try:
            await connection.send(request)
        finally:
            connection.close()


@asynccontextmanager
async def working(
    server: Server, program: Program, *, pollers: int, history: History | None = None
) -> AsyncIterator[Worker]:
    """A registered worker with `pollers` polls of each kind.

    A poller that fails cancels the measurement: a figure taken beside errors means nothing.
    """
    worker = Worker(server, program, history or FullHistory())
    await worker.register(slots=pollers)
    async with asyncio.TaskGroup() as group:
        loops = [group.create_task(worker.heartbeat_forever(), name="heartbeat")]
        for number in range(pollers):
            loops.append(group.create_task(worker.run_workflow_tasks(), name=f"workflow-{number}"))
            loops.append(group.create_task(worker.run_activity_tasks(), name=f"activity-{number}"))
        try:
            yield worker
        finally:
            for loop in loops:
                loop.cancel()
