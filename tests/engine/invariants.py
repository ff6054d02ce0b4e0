"""What must be true of every store file, whatever happened to the processes that wrote it."""

from collections import Counter
from typing import Any

import msgspec

from perdure.core.run.cause import next_cause
from perdure.core.run.deadline import next_due
from perdure.core.run.state import WORKFLOW_TASK, Activity, Run, TaskState
from perdure.store.interface import RunFilter
from perdure.store.sqlite.store import SqliteStore

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


async def check_disk(store: SqliteStore, namespace: str = "default") -> list[Run]:
    """Check every run of a namespace, and what lies beside the runs. Returns them, eldest first."""
    listed = await store.read_list(RunFilter(namespace=namespace), None, 10_000)
    runs = _eldest_first(await store.load_runs([run.run_id for run in listed]))
    for run in runs:
        await _check_history(store, run)
        _check_cause(store, run)
    _check_ready(store, runs)
    await _check_leases(store, runs, namespace)
    return runs


def _eldest_first(runs: list[Run]) -> list[Run]:
    """Parents before children, and the runs of a chain in their order."""
    by_id = {run.run_id: run for run in runs}

    def generation(run: Run) -> int:
        return 0 if run.parent is None else generation(by_id[run.parent.run_id]) + 1

    return sorted(runs, key=lambda run: (generation(run), run.started_at, run.run_number))


async def _check_history(store: SqliteStore, run: Run) -> None:
    encoded = await store.read_history(run.run_id, 0, 100_000)
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
    closed = [position for position, kind in enumerate(types, 1) if kind in CLOSINGS]
    assert closed == ([len(types)] if run.is_closed else []), types


def _check_cause(store: SqliteStore, run: Run) -> None:
    cause, due_at = next_cause(run), next_due(run)
    query = "select due_at from deadline where kind = 'run' and target = ?"
    armed = [at for (at,) in store._reader.execute(query, (run.run_id,)).fetchall()]
    assert armed == ([] if run.due_at is None else [run.due_at])
    if run.is_closed:
        assert (cause, run.operations, run.inbox, armed) == (None, {}, {}, []), run.run_id
        return
    assert cause is not None, f"nothing will ever move run {run.run_id}"
    if due_at is not None:
        assert run.due_at is not None, f"run {run.run_id} waits for {cause.text}, unarmed"
        assert run.due_at <= due_at, f"run {run.run_id} would be looked at too late"


def _check_ready(store: SqliteStore, runs: list[Run]) -> None:
    """The disk offers exactly what is ready."""
    offered = set(store._reader.execute("select run_id, place from ready").fetchall())
    expected = set()
    for run in runs:
        if run.task is not None and run.task.state is TaskState.READY:
            expected.add((run.run_id, WORKFLOW_TASK))
        for sequence, operation in run.operations.items():
            if not isinstance(operation, Activity) or operation.outcome is not None:
                continue
            if operation.state is TaskState.READY:
                expected.add((run.run_id, sequence))
    known = {run.run_id for run in runs}
    assert {task for task in offered if task[0] in known} == expected


async def _check_leases(store: SqliteStore, runs: list[Run], namespace: str) -> None:
    held: dict[str, set[tuple[str, int]]] = {}
    for run in runs:
        if run.task is not None and run.task.lease is not None:
            held.setdefault(run.task.lease.owner, set()).add((run.run_id, WORKFLOW_TASK))
        for sequence, operation in run.operations.items():
            if isinstance(operation, Activity) and operation.lease is not None:
                held.setdefault(operation.lease.owner, set()).add((run.run_id, sequence))
    for owner, tasks in held.items():
        assert set(await store.find_leases(namespace, owner)) == tasks
