"""Many mixed runs on a server that may vanish at any moment: start, signal, await, judge.

    <sdk python> -m tests.sdk.storm --server URL --queue QUEUE --runs N [--patience SECONDS]

Prints `under way` when every run was started, and one JSON line with the verdict.
"""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found,no-any-return"

import argparse
import asyncio
import json
import sys
import traceback
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import durable_workflow
import httpx
from durable_workflow import Client, ServerError, SignalFailed, WorkflowAlreadyStarted

from tests.sdk.replaying import kinds
from tests.sdk.stage import Run, replay_family

# The 0.4 releases know no validations, so nothing of them can fail.
VALIDATION_FAILED: Any = getattr(durable_workflow, "UpdateValidationFailed", ())

PATIENCE = 120.0
OUTAGE_PAUSE = 0.2


class Voyage(NamedTuple):
    """One run: what to start, whom to announce and what to pay, and what it must return."""

    workflow_type: str
    arguments: list[Any]
    passengers: list[str]
    expected: Any
    tolls: tuple[int, ...] = ()


VOYAGES = (
    Voyage("trip", [5], [], 5),
    Voyage("convoy", [4], [], [1, 2, 3, 4, 2]),
    Voyage("ferry", [["ada", "bob", "cyd"]], ["cyd", "ada", "bob"], ["ada", "bob", "cyd"]),
    Voyage("stages", [3, []], [], [4, 3, 2, 1]),
    Voyage("tollgate", [2], [], [2, 3], tolls=(1, 2)),
)


async def persist(call: Callable[[], Awaitable[Any]]) -> Any:
    """Ask until the server answers; an outage is no answer."""
    while True:
        try:
            return await call()
        except httpx.TransportError:
            await asyncio.sleep(OUTAGE_PAUSE)
        except ServerError as refusal:
            if refusal.status < 500:
                raise
            await asyncio.sleep(OUTAGE_PAUSE)


async def start(client: Client, queue: str, voyage: Voyage) -> Run:
    """Start the run, once, however often the answer is lost."""
    workflow_id = f"{voyage.workflow_type}-{uuid.uuid4().hex[:8]}"

    async def ask() -> None:
        try:
            await client.start_workflow(
                workflow_type=voyage.workflow_type,
                workflow_id=workflow_id,
                task_queue=queue,
                input=voyage.arguments,
            )
        except WorkflowAlreadyStarted:
            return  # by ourselves: the answer was lost, the start was not

    await persist(ask)
    return Run(client, client.get_workflow_handle(workflow_id))


async def announce(run: Run, passenger: str) -> None:
    """Signal the run at least once."""

    async def ask() -> None:
        try:
            await run.signal("board", passenger)
        except SignalFailed:
            return  # it left already, with this passenger: only the answer was lost

    await persist(ask)


async def pay(run: Run, amount: int) -> None:
    """Send an update until its outcome is known; under one request id it counts once."""
    request_id = uuid.uuid4().hex

    async def ask() -> Any:
        try:
            return await run.client.update_workflow(
                run.workflow_id,
                "pay",
                args=[amount],
                wait_for="completed",
                request_id=request_id,
            )
        except VALIDATION_FAILED as refusal:
            if not refusal.retryable:
                raise
            return {"update_status": "refused"}

    while (await persist(ask))["update_status"] != "completed":  # noqa: ASYNC110 (nobody would tell us)
        await asyncio.sleep(OUTAGE_PAUSE)


async def judge(run: Run, voyage: Voyage, patience: float) -> list[str]:
    """Wait for the run's end, compare its result and replay its histories; what they told."""
    result = await persist(lambda: run.result(patience=patience))
    assert result == voyage.expected, f"{run.workflow_id} returned {result!r}"
    histories = await persist(lambda: replay_family(run))
    return [kind for events in histories for kind in kinds(events)]


async def storm(server: str, queue: str, runs: int, patience: float) -> dict[str, Any]:
    """The whole voyage of all runs; the verdict."""
    async with Client(server, token="perdure") as client:
        voyages = [VOYAGES[number % len(VOYAGES)] for number in range(runs)]
        started = await asyncio.gather(*(start(client, queue, voyage) for voyage in voyages))
        print("under way", flush=True)
        under_way = list(zip(started, voyages, strict=True))
        try:
            await asyncio.gather(
                *(announce(run, name) for run, voyage in under_way for name in voyage.passengers),
                *(pay(run, toll) for run, voyage in under_way for toll in voyage.tolls),
            )
            told = await asyncio.gather(
                *(judge(run, voyage, patience) for run, voyage in under_way)
            )
        except Exception:
            return {"ok": False, "error": traceback.format_exc(), "runs": {}}
        return {
            "ok": True,
            "runs": dict(zip((run.workflow_id for run in started), told, strict=True)),
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", required=True)
    parser.add_argument("--queue", required=True)
    parser.add_argument("--runs", type=int, required=True)
    parser.add_argument("--patience", type=float, default=PATIENCE)
    options = parser.parse_args()
    verdict = asyncio.run(storm(options.server, options.queue, options.runs, options.patience))
    print(json.dumps(verdict), flush=True)
    return 0 if verdict["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
