"""Load at a steady level: a workflow that completes is replaced by the next one at once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from bench.process import Spent
from bench.server import Server
from bench.worker import Worker

WINDOW_TIMEOUT: Final = 20.0


class Stalled(Exception):
    """No workflow completed in a whole window."""


@dataclass(frozen=True, slots=True)
class Window:
    """What was completed between two moments of a steady load, and what that took."""

    workflows: int
    activities: int
    spent: Spent


class Load:
    """Workflows in flight, counted as they complete."""

    def __init__(self, server: Server, worker: Worker) -> None:
        self._server = server
        self._worker = worker
        self._completed = 0
        self._goal = 0
        self._goal_reached = asyncio.Event()

    async def window(self, count: int) -> Window:
        """Watch the next `count` completions, or as many as the window's timeout allows.

        Windows follow each other without a drain between them, so each sees the steady level.
        """
        workflows_before = self._completed
        activities_before = self._worker.activities_completed
        self._goal = workflows_before + count
        self._goal_reached.clear()
        before = self._server.read_usage()
        try:
            async with asyncio.timeout(WINDOW_TIMEOUT):
                await self._goal_reached.wait()
        except TimeoutError:
            pass
        spent = self._server.read_usage().since(before)
        workflows = self._completed - workflows_before
        if not workflows:
            raise Stalled(f"no workflow completed in {WINDOW_TIMEOUT:g} s")
        return Window(workflows, self._worker.activities_completed - activities_before, spent)

    async def keep_one_in_flight(self) -> None:
        """Run one workflow after another until cancelled."""
        connection = self._server.connect()
        try:
            while True:
                await self._worker.run_workflow(connection)
                self._completed += 1
                if self._completed >= self._goal:
                    self._goal_reached.set()
        finally:
            connection.close()


@asynccontextmanager
async def loading(server: Server, worker: Worker, *, in_flight: int) -> AsyncIterator[Load]:
    """A load of `in_flight` workflows; those still in flight at the end are abandoned."""
    load = Load(server, worker)
    async with asyncio.TaskGroup() as group:
        starters = [
            group.create_task(load.keep_one_in_flight(), name=f"starter-{number}")
            for number in range(in_flight)
        ]
        try:
            yield load
        finally:
            for starter in starters:
                starter.cancel()
