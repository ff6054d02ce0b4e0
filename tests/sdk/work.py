"""A worker process for stories about crashes: prints a line at every milestone, until SIGTERM.

<sdk python> -m tests.sdk.work --server URL --queue QUEUE [--hold activity|workflow]
    [--capability NAME]…
"""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found,misc,no-any-return"

import argparse
import asyncio
import contextlib
import os
import signal
from typing import Any

from durable_workflow import Client, PassthroughWorkerInterceptor, Worker

from tests.sdk import programs
from tests.sdk.parsing import take_turns
from tests.sdk.sdk_harness import SHUTDOWN_TIMEOUT, working


class Milestones(PassthroughWorkerInterceptor):
    """Tells of every task before and after it; may hold the first of a kind for ever."""

    def __init__(self, hold: str) -> None:
        self._hold = hold

    async def execute_workflow_task(self, context: Any, next: Any) -> Any:
        await self._begin("workflow", context.task["workflow_id"])
        commands = await next(context)
        print("ended workflow", context.task["workflow_id"], flush=True)
        return commands

    async def execute_activity(self, context: Any, next: Any) -> Any:
        await self._begin("activity", context.activity_type)
        result = await next(context)
        print("ended activity", context.activity_type, flush=True)
        return result

    async def _begin(self, kind: str, name: str) -> None:
        if self._hold == kind:
            print("holding", kind, name, flush=True)
            await asyncio.Event().wait()
        print("began", kind, name, flush=True)


async def work(server: str, queue: str, hold: str, capabilities: list[str]) -> None:
    """Poll until someone says stop."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with Client(server, token="perdure") as client:
        worker = Worker(
            client,
            task_queue=queue,
            workflows=programs.WORKFLOWS,
            activities=programs.ACTIVITIES,
            interceptors=[Milestones(hold)],
            **_options(capabilities),
            shutdown_timeout=SHUTDOWN_TIMEOUT,
        )
        async with working(worker) as loop:
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait([stopping, loop], return_when=asyncio.FIRST_COMPLETED)


def _options(capabilities: list[str]) -> dict[str, Any]:
    options: dict[str, Any] = {"capabilities": capabilities} if capabilities else {}
    if _prepares(capabilities):
        # The SDK gives up a slot for every process that it could not see begin in time.
        options["max_concurrent_workflow_tasks"] = 100
    return options


def _prepares(capabilities: list[str]) -> bool:
    return "prepared_local_activities" in capabilities


def main() -> None:
    take_turns()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", required=True)
    parser.add_argument("--queue", required=True)
    parser.add_argument("--hold", default="nothing")
    parser.add_argument("--capability", action="append", default=[])
    options = parser.parse_args()
    if _prepares(options.capability):
        # Its processes have to be quick; where one may not say so, it stays as it is.
        with contextlib.suppress(PermissionError):
            os.nice(-10)
    asyncio.run(work(options.server, options.queue, options.hold, options.capability))


if __name__ == "__main__":
    main()
