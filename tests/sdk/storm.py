"""Many mixed runs on a server that may vanish at any moment: start, signal, await, judge.

    <sdk python> -m tests.sdk.storm --server URL --queue QUEUE --runs N [--patience SECONDS]

Prints `under way` when every run was started, and one JSON line with the verdict.
"""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found,no-any-return"

import argparse
import asyncio
import contextlib
import json
import sys
import traceback
import uuid
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, NamedTuple

import durable_workflow
import httpx
from durable_workflow import Client, ServerError, SignalFailed, WorkflowAlreadyStarted

from tests.sdk.improvising import SEED, Oracle, make_plan
from tests.sdk.release import since
from tests.sdk.replaying import kinds
from tests.sdk.sdk_harness import Run, replay_family, rest

# The 0.4 releases know no validations, so nothing of them can fail.
VALIDATION_FAILED: Any = getattr(durable_workflow, "UpdateValidationFailed", ())

PATIENCE = 120.0
OUTAGE_PAUSE = 0.2
# The gates of 0.4 break when they are true before they are reached.
KNOCKS = 3 if since("2.0.0") else 0


class Voyage(NamedTuple):
    """One run: what to start, whom to announce and what to pay, and what it must return."""

    workflow_type: str
    arguments: list[Any]
    passengers: list[str]
    expected: Any
    tolls: tuple[int, ...] = ()
    knocks: int = 0

    def is_end(self, result: Any) -> bool:
        """Whether it may end like that."""
        if self.workflow_type == "improvised":
            return Oracle(is_stormy=True).foresees(self.arguments[0], result)
        return bool(result == self.expected)


VOYAGES = (
    Voyage("trip", [5], [], 5),
    Voyage("convoy", [4], [], [1, 2, 3, 4, 2]),
    Voyage("ferry", [["ada", "bob", "cyd"]], ["cyd", "ada", "bob"], ["ada", "bob", "cyd"]),
    Voyage("stages", [3, []], [], [4, 3, 2, 1]),
    Voyage("tollgate", [2], [], [2, 3], tolls=(1, 2)),
)


def improvise(number: int) -> Voyage:
    """A voyage that is another one every time, and the same for the same number."""
    return Voyage("improvised", [make_plan(Random(f"{SEED} {number}"))], [], None, knocks=KNOCKS)


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


async def knock(run: Run) -> None:
    """Signal the run at least once, unless it is over."""

    async def ask() -> None:
        with contextlib.suppress(SignalFailed):
            await run.signal("knock")

    await persist(ask)


async def pay(run: Run, amount: int) -> None:
    """Send an update until it is done; under one request id it counts once.

    One that nobody validated in time is refused for good, so it is sent anew.
    """
    request_id = uuid.uuid4().hex

    async def ask() -> str:
        try:
            answer = await run.client.update_workflow(
                run.workflow_id,
                "pay",
                args=[amount],
                wait_for="completed",
                request_id=request_id,
            )
        except VALIDATION_FAILED as refusal:
            if not refusal.retryable:
                raise
            return "refused"
        return str(answer["update_status"])

    while (status := await persist(ask)) != "completed":
        if status == "refused":
            request_id = uuid.uuid4().hex
        await asyncio.sleep(OUTAGE_PAUSE)


async def judge(run: Run, voyage: Voyage, patience: float) -> list[str]:
    """Wait for the run's end, compare its result and replay its histories; what they told."""
    result = await persist(lambda: run.result(patience=patience))
    assert voyage.is_end(result), f"{run.workflow_id} {voyage.arguments} returned {result!r}"
    await persist(lambda: rest(run))
    histories = await persist(lambda: replay_family(run))
    return [kind for events in histories for kind in kinds(events)]


def voyage(number: int) -> Voyage:
    """Those of the list by turns, and then one that is not on it."""
    place = number % (len(VOYAGES) + 1)
    return VOYAGES[place] if place < len(VOYAGES) else improvise(number)


async def storm(server: str, queue: str, runs: int, patience: float) -> dict[str, Any]:
    """The whole voyage of all runs; the verdict."""
    async with Client(server, token="perdure") as client:
        voyages = [voyage(number) for number in range(runs)]
        started = await asyncio.gather(*(start(client, queue, voyage) for voyage in voyages))
        print("under way", flush=True)
        under_way = list(zip(started, voyages, strict=True))
        try:
            await asyncio.gather(
                *(announce(run, name) for run, voyage in under_way for name in voyage.passengers),
                *(pay(run, toll) for run, voyage in under_way for toll in voyage.tolls),
                *(knock(run) for run, voyage in under_way for _ in range(voyage.knocks)),
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
