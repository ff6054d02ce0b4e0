"""What must be true of every store, whatever happened to the processes that wrote it."""

from collections import Counter, defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import apsw
import msgspec

from perdure.core.run.cause import next_cause
from perdure.core.run.deadline import next_due
from perdure.core.run.lease import TaskState
from perdure.core.run.operation import Activity
from perdure.core.run.state import ROW_FIELDS, WORKFLOW_TASK, Run
from perdure.store import rows
from perdure.store.sqlite.store import SqliteStore
from tests.support.tables import Rows, every_row

ENDINGS = {
    "ActivityCompleted": "activity",
    "ActivityFailed": "activity",
    "ActivityTimedOut": "activity",
    "ActivityCancelled": "activity",
    "TimerFired": "timer",
    "TimerCancelled": "timer",
    "ChildRunCompleted": "child",
    "ChildRunFailed": "child",
    "ChildRunCancelled": "child",
    "ChildRunTerminated": "child",
    "ConditionWaitSatisfied": "condition",
    "ConditionWaitTimedOut": "condition",
}
CLOSINGS = {
    "WorkflowCompleted",
    "WorkflowFailed",
    "WorkflowCancelled",
    "WorkflowTerminated",
    "WorkflowTimedOut",
    "WorkflowContinuedAsNew",
}


async def check_disk(store: SqliteStore) -> list[Run]:
    """Check every run, and what lies beside the runs. Returns them, eldest first.

    Looks at what is committed, through a connection of its own: the engine may be at work.
    """
    with closing(Disk(store._path)) as disk:
        return _check(disk)


async def check_database(url: str) -> list[Run]:
    """The same for a PostgreSQL: everything is of one moment, nodes may be at work."""
    return _check(Snapshot(await every_row(url)))


class Look(Protocol):
    """One moment of a store."""

    def runs(self) -> list[Run]: ...
    def events(self, run_id: str) -> list[bytes]: ...
    def armed(self, run_id: str) -> list[int]: ...
    def offered(self) -> set[tuple[str, int]]: ...
    def owners(self) -> set[tuple[str, int, str]]: ...


def _check(disk: Look) -> list[Run]:
    runs = _eldest_first(disk.runs())
    for run in runs:
        _check_history(disk, run)
        _check_cause(disk, run)
    _check_ready(disk, runs)
    _check_leases(disk, runs)
    return runs


class Disk:
    """One moment of a store file."""

    def __init__(self, path: Path) -> None:
        self._connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        self._connection.execute("begin")

    def close(self) -> None:
        self._connection.close()

    def ask(self, query: str, *values: str) -> list[tuple[Any, ...]]:
        return self._connection.execute(query, values).fetchall()

    def runs(self) -> list[Run]:
        columns = ", ".join((*ROW_FIELDS, "task_owner", "state"))
        runs = {row[0]: rows.run_of(row) for row in self.ask(f"select {columns} from run")}
        for run_id, sequence, data in self.ask("select run_id, sequence, data from operation"):
            runs[run_id].operations[sequence] = rows.operation_of(data)
        for run_id, position, data in self.ask("select run_id, position, data from inbox"):
            runs[run_id].place_message(position, rows.signal_of(data))
        return list(runs.values())

    def events(self, run_id: str) -> list[bytes]:
        query = "select first_sequence, last_sequence, events from history where run_id = ?"
        return _joined(self.ask(f"{query} order by first_sequence", run_id))

    def armed(self, run_id: str) -> list[int]:
        query = "select due_at from deadline where kind = 'run' and target = ?"
        return [at for (at,) in self.ask(query, run_id)]

    def offered(self) -> set[tuple[str, int]]:
        return {(run_id, place) for run_id, place in self.ask("select run_id, place from ready")}

    def owners(self) -> set[tuple[str, int, str]]:
        tasks = self.ask("select run_id, 0, task_owner from run where task_owner is not null")
        steps = "select run_id, sequence, lease_owner from operation where lease_owner is not null"
        return {(row[0], row[1], row[2]) for row in (*tasks, *self.ask(steps))}


class Snapshot:
    """One moment of a database, from all its rows."""

    def __init__(self, tables: Rows) -> None:
        self._tables: dict[str, list[Any]] = dict(tables)
        self._history: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
        for run_id, *chunk in sorted(self._tables["history"], key=lambda row: row[:2]):
            self._history[run_id].append(tuple(chunk))

    def runs(self) -> list[Run]:
        opened = {row[0]: row for row in self._tables["open_run"]}
        runs = {}
        for row in self._tables["run"]:
            run_id = row[0]
            closed_at, status, version, state = row[7:11]
            assert (run_id in opened) == (closed_at is None), f"run {run_id} is open and closed"
            owner = None
            if run_id in opened:
                assert state is None
                status, version, owner, _, state = opened[run_id][1:]
            values = (*row[:7], status, closed_at, version, owner, state)
            runs[run_id] = rows.run_of(values)
        assert set(opened) <= set(runs), "an open run that is none"
        for run_id, sequence, _, _, data in self._tables["operation"]:
            runs[run_id].operations[sequence] = rows.operation_of(data)
        for run_id, position, data in self._tables["inbox"]:
            runs[run_id].place_message(position, rows.signal_of(data))
        return list(runs.values())

    def events(self, run_id: str) -> list[bytes]:
        return _joined(self._history[run_id])

    def armed(self, run_id: str) -> list[int]:
        return [row[2] for row in self._tables["deadline"] if row[:2] == ("run", run_id)]

    def offered(self) -> set[tuple[str, int]]:
        return {(row[0], row[1]) for row in self._tables["ready"]}

    def owners(self) -> set[tuple[str, int, str]]:
        tasks = {(row[0], WORKFLOW_TASK, row[3]) for row in self._tables["open_run"] if row[3]}
        return tasks | {(row[0], row[1], row[2]) for row in self._tables["operation"] if row[2]}


def _joined(chunks: list[tuple[Any, ...]]) -> list[bytes]:
    """The events of a history, whose chunks follow each other without a gap."""
    events: list[bytes] = []
    for first, last, chunk, *_ in chunks:
        assert first == len(events) + 1
        events += rows.events_of(chunk)
        assert last == len(events)
    return events


def _eldest_first(runs: list[Run]) -> list[Run]:
    """Parents before children, and the runs of a chain in their order."""
    by_id = {run.run_id: run for run in runs}

    def generation(run: Run) -> int:
        return 0 if run.parent is None else generation(by_id[run.parent.run_id]) + 1

    return sorted(runs, key=lambda run: (generation(run), run.started_at, run.run_number))


def _check_history(disk: Look, run: Run) -> None:
    encoded = disk.events(run.run_id)
    events: list[dict[str, Any]] = [msgspec.json.decode(event) for event in encoded]
    types = [event["event_type"] for event in events]
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1)), types
    assert run.history_count == len(events)
    assert run.history_bytes == sum(map(len, encoded))
    assert len({event["id"] for event in events}) == len(events)
    ended = Counter(
        (ENDINGS[event["event_type"]], event["payload"]["sequence"])
        for event in events
        if event["event_type"] in ENDINGS
    )
    assert all(times == 1 for times in ended.values()), (ended, types)
    received = Counter(e["payload"]["signal_id"] for e in events if "signal_id" in e["payload"])
    assert all(times <= 2 for times in received.values()), received  # received and applied
    _check_attempts([e["payload"] for e in events if e["event_type"] == "ActivityStarted"])
    closed = [position for position, kind in enumerate(types, 1) if kind in CLOSINGS]
    assert closed == ([len(types)] if run.is_closed else []), types


def _check_attempts(started: list[dict[str, Any]]) -> None:
    """No lease has the id of another, and attempts count them all, or all but those unseen."""
    last: dict[str, tuple[int, int]] = {}
    for told in started:
        execution, attempt = told["activity_execution_id"], told["attempt_number"]
        owner, _, number = told["activity_attempt_id"].rpartition("-")
        if owner != execution.upper():
            # Work that workers do themselves has names of theirs.
            continue
        lease, before = int(number), last.get(execution, (0, 0))
        assert lease > before[0], f"{told['activity_attempt_id']} is not the next one"
        unseen = lease - before[0] - (attempt - before[1])
        assert unseen in ((0, 1) if execution in last else (0,)), (before, lease, attempt)
        last[execution] = (lease, attempt)


def _check_cause(disk: Look, run: Run) -> None:
    cause, due_at = next_cause(run), next_due(run)
    armed = disk.armed(run.run_id)
    assert armed == ([] if run.due_at is None else [run.due_at])
    if run.is_closed:
        assert (cause, run.operations, armed) == (None, {}, []), run.run_id
        assert (run.inbox, run.unread) == ({}, {}), run.run_id
        return
    assert cause is not None, f"nothing will ever move run {run.run_id}"
    if due_at is not None:
        assert run.due_at is not None, f"run {run.run_id} waits for {cause.text}, unarmed"
        assert run.due_at <= due_at, f"run {run.run_id} would be looked at too late"


def _check_ready(disk: Look, runs: list[Run]) -> None:
    """The disk offers exactly what is ready."""
    expected = set()
    for run in runs:
        if run.task is not None and run.task.state is TaskState.READY:
            expected.add((run.run_id, WORKFLOW_TASK))
        for sequence, operation in run.operations.items():
            if not isinstance(operation, Activity) or operation.outcome is not None:
                continue
            if operation.state is TaskState.READY:
                expected.add((run.run_id, sequence))
    assert disk.offered() == expected


def _check_leases(disk: Look, runs: list[Run]) -> None:
    """Who holds what can be found by its owner."""
    held = set()
    for run in runs:
        if run.task is not None and run.task.lease is not None:
            held.add((run.run_id, WORKFLOW_TASK, run.task.lease.owner))
        for sequence, operation in run.operations.items():
            if isinstance(operation, Activity) and operation.lease is not None:
                held.add((run.run_id, sequence, operation.lease.owner))
    assert disk.owners() == held
