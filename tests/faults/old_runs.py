"""A store full of old and young runs of both sorts, and what each of them has on disk.

Whatever is old has the workflow type `old`, so who looks at the disk knows what may go.
"""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from perdure.clock import SystemClock
from perdure.core.external import PayloadOwner, Stored
from perdure.engine.payloads import PAYLOADS
from perdure.features.retention.operations import LEFTOVER, RUN_RECORDS, Leftover
from perdure.server.features import make_registry
from perdure.server.settings import is_postgres
from tests.support.clock import SECOND, START
from tests.support.http import (
    Wire,
    a_wire,
    avro,
    complete_workflow,
    schedule_activity,
    start_timer,
)
from tests.support.runner import a_runner, op, ran, rows, settled, start, workflow
from tests.support.tables import Rows, every_row, every_row_of_file
from tests.support.uploads import outside

T = TypeVar("T")

DAY = 86_400
PULL_OLD = 3
PUSH_OLD = 2
OWNED = ("run", "open_run", "history", "operation", "inbox", "ready", "receipt", "stream_item")
KINDS_OWNED = {*RUN_RECORDS, *make_registry().run_records}


def furnish(folder: Path, store: str) -> None:
    """Play what was, forty days ago and an hour ago."""
    with a_wire(folder, store=store) as wire:
        # Old is what the clock of the servers to come calls old.
        wire.jump(seconds=(SystemClock().now() - START) / SECOND - 40 * DAY)
        both = outside(wire, ["in both"])
        _play(wire, "old", both, pulled=PULL_OLD, pushed=PUSH_OLD)
        wire.jump(seconds=40 * DAY - 3_600)
        _play(wire, "young", both, pulled=1, pushed=1)
        wire.start("waiting", workflow_type="young")
        wire.complete(wire.take(), start_timer(300 * DAY))
        runner = a_runner(wire, workflow("young"))
        asleep = start(wire, "young", session="s1")
        runner.next().found(op("Sleep", "nap", sleepMs=300 * DAY * 1_000))
        settled(wire, asleep, "waiting")
        runner.close()
        # Whoever was about to look at one of them has done so.
        wire.advance(seconds=300)


def _play(wire: Wire, sort: str, both: Any, *, pulled: int, pushed: int) -> None:
    wire.register(supported_workflow_types=[sort])
    for number in range(pulled):
        workflow_id = f"{sort}-{number}"
        given = both if number == 0 else outside(wire, [workflow_id])
        run_id = wire.start(workflow_id, workflow_type=sort, input=given)["run_id"]
        for request in range(4):
            wire.signal("pay", workflow_id, request_id=f"r{request}")
        path = f"/workflows/{workflow_id}/runs/{run_id}/streams/log/items"
        wire.control("POST", path, {"items": [{"payload": avro(n)} for n in range(4)]}).ok()
        wire.complete(wire.take(), schedule_activity())
        wire.report_attempt(wire.take("activity"), "complete", result=avro(1)).ok()
        wire.complete(wire.take(), complete_workflow())
    runner = a_runner(wire, workflow(sort))
    for _ in range(pushed):
        run_id = start(wire, sort, session="s1")
        runner.next().found(ran("pay", 1))
        runner.next().found(op("Approval", "ok", tool="refund", data=1, risk="high"))
        settled(wire, run_id, "needs_attention")
        (approval,) = rows(wire, f"/approvals?runId={run_id}")
        decision = {"status": "approved", "decidedBy": "ann"}
        wire.call("POST", f"/approvals/{approval['id']}/decision", decision).ok()
        runner.next().returned()
        settled(wire, run_id, "succeeded")
        for number in range(2):
            score = {"name": "good", "value": 1, "dedupeId": f"d{number}"}
            wire.call("POST", f"/runs/{run_id}/scores", score).ok()
    runner.close()


class Inventory:
    """One moment of such a store."""

    def __init__(self, store: Path | str) -> None:
        self._rows: Rows = (
            asyncio.run(every_row(store))
            if isinstance(store, str) and is_postgres(store)
            else every_row_of_file(Path(store))
        )

    def runs(self, sort: str) -> set[str]:
        """What is found of a sort."""
        return {str(row[0]) for row in self._rows["run"] if row[3] == sort}

    def of(self, run_id: str) -> set[tuple[object, ...]]:
        """Every row that is a run's own."""
        owned = {
            (table, *row)
            for table in OWNED
            for row in self._rows.get(table, ())
            if run_id in repr(row)
        }
        return owned | {
            row for row in self._rows["record"] if row[0] in KINDS_OWNED and _is_key(row, run_id)
        }

    def cleared(self) -> set[str]:
        """Runs of which it is written down that there are remains."""
        notes = self._records(LEFTOVER.name, Leftover)
        return {run_id for note in notes for run_id in note.run_ids}

    def payloads(self) -> Counter[PayloadOwner]:
        """How many external payloads are kept, and how many are loose."""
        return Counter(known.custody for known in self._records(PAYLOADS.name, Stored))

    def _records(self, kind: str, shape: type[T]) -> list[T]:
        found: list[Any] = [row[-1] for row in self._rows["record"] if row[0] == kind]
        return [msgspec.msgpack.decode(data, type=shape) for data in found]


def _is_key(row: tuple[object, ...], run_id: str) -> bool:
    return str(row[2]).startswith(run_id)
