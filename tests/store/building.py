"""Runs to be stored: ordinary ones, made by the rules, and strange ones, with all fields filled."""

from enum import Enum
from itertools import count
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import msgspec
from hypothesis import strategies as st

from perdure.core.fleet.worker import Worker
from perdure.core.run.context import Context
from perdure.core.run.history import record
from perdure.core.run.lease import Lease, TaskState
from perdure.core.run.operation import Activity
from perdure.core.run.operation import Operation as Step
from perdure.core.run.start import StartRequest, start_run
from perdure.core.run.state import STATE_FIELDS, Run, WorkflowTask
from perdure.identity import IdSource

NOW = 1_800_000_000_000_000

ids = IdSource(lambda: NOW, seed=1)
ctx = Context(NOW, ids)


# Ordinary ones ----------------------------------------------------------------------------------


def a_run(workflow_id: str = "order", *, now: int = NOW, **request: Any) -> Run:
    """A run that was just started."""
    request = {"namespace": "default", "workflow_type": "shop", "queue": "q", **request}
    wanted = StartRequest(workflow_id=workflow_id, **request)
    return start_run(wanted, Context(now, ids))


def with_activity(run: Run, sequence: int = 1, *, queue: str = "q", available_at: int = NOW) -> Run:
    """The run with one more ready activity."""
    run.operations[sequence] = Activity(
        sequence=sequence,
        execution_id=f"execution-{sequence}",
        activity_type="pay",
        queue=queue,
        arguments=b"[]",
        scheduled_at=available_at,
        available_at=available_at,
    )
    run.unsaved.operations.add(sequence)
    run.unsaved.ready[sequence] = True
    return run


def leased(run: Run, owner: str, *, place: int = 0) -> Run:
    """The run with its workflow task, or an activity, in the hands of a worker."""
    holder: Any = run.task if place == 0 else run.operations[place]
    holder.lease = Lease(owner, NOW, NOW + 60_000_000)
    holder.state = TaskState.LEASED
    if place:
        run.unsaved.operations.add(place)
    run.unsaved.ready[place] = False
    return run


def with_events(run: Run, how_many: int, *, bytes_each: int = 10) -> Run:
    """The run with more history."""
    for number in range(how_many):
        record(run, ctx, "Noted", {"number": number, "text": "x" * bytes_each})
    return run


def a_worker(worker_id: str = "w1", **values: Any) -> Worker:
    fixed = {"namespace": "default", "queue": "q", "runtime": "python"}
    told = {"registered_at": NOW, "heartbeat_at": NOW, "registration_token": "t"}
    return Worker(worker_id=worker_id, **{**fixed, **told, **values})


# Strange ones -----------------------------------------------------------------------------------

_TEXT = st.text(max_size=8)
_INTEGERS = st.integers(-(2**62), 2**62)
_JSON = st.recursive(
    st.none() | st.booleans() | _INTEGERS | st.floats(allow_nan=False) | _TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_TEXT, inner, max_size=2),
    max_leaves=4,
)
_PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    str: _TEXT,
    int: _INTEGERS,
    bytes: st.binary(max_size=8),
    bool: st.booleans(),
    float: st.floats(allow_nan=False, allow_infinity=False),
    NoneType: st.none(),
    Any: _JSON,
}
_made: dict[Any, st.SearchStrategy[Any]] = {}


def anything(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a type, whatever it is made of: a new field is covered the day it is added."""
    if kind not in _made:
        _made[kind] = _strategy(kind)
    return _made[kind]


def _strategy(kind: Any) -> st.SearchStrategy[Any]:
    if kind in _PLAIN:
        return _PLAIN[kind]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return st.one_of(*(anything(member) for member in arguments))
    if origin is list:
        return st.lists(anything(arguments[0]), max_size=2)
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(anything(arguments[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*(anything(member) for member in arguments))
    if origin is dict:
        return st.dictionaries(anything(arguments[0]), anything(arguments[1]), max_size=2)
    if issubclass(kind, Enum):
        return st.sampled_from(list(kind))
    fields = {field.name: anything(field.type) for field in msgspec.structs.fields(kind)}
    return st.builds(kind, **fields)


_run_fields = {field.name: field for field in msgspec.structs.fields(Run)}
_numbers = count(1)


@st.composite
def strange_runs(draw: st.DrawFn) -> Run:
    """Runs in which every field holds something, whether or not the rules would put it there."""
    number = next(_numbers)
    row = {name: draw(anything(_run_fields[name].type)) for name in _ROW}
    state = {name: draw(anything(_run_fields[name].type)) for name in STATE_FIELDS}
    run = Run(run_id=f"run{number}", **{**row, **state, "workflow_id": f"workflow{number}"})
    run.closed_at = (run.closed_at or 0) if run.is_closed else None
    arguments = msgspec.json.encode(draw(_JSON))
    started = b'{"event_type":"WorkflowStarted","payload":{"input":' + arguments + b"}}"
    others = draw(st.lists(_JSON, max_size=3))
    more = [msgspec.json.encode({"event_type": "E", "payload": {"x": x}}) for x in others]
    return with_parts(
        run,
        arguments=arguments,
        events=[started, *more],
        steps=draw(st.lists(anything(Step), max_size=3)),
        signals=draw(anything(_run_fields["inbox"].type)),
    )


_ROW = ("namespace", "workflow_type", "queue", "run_number", "started_at", "status", "closed_at")


def with_parts(
    run: Run, *, arguments: bytes, events: list[bytes], steps: list[Step], signals: dict[int, Any]
) -> Run:
    """The run with what stands in tables of its own, all of it new."""
    run.arguments, run.events = arguments, events
    run.events_bytes = run.history_bytes = sum(map(len, events))
    run.history_count = len(events)
    run.operations = {step.sequence: step for step in steps}
    for position, message in signals.items():
        run.place_message(position, message)
    run.unsaved.created = True
    run.unsaved.events = list(events)
    run.unsaved.operations = set(run.operations)
    run.unsaved.inbox = set(signals)
    return run


def fields_of(run: Run) -> dict[str, Any]:
    """Everything that a run says about itself, except what is not yet on disk."""
    return {name: getattr(run, name) for name in Run.__struct_fields__ if name != "unsaved"}


def a_task(number: int = 1) -> WorkflowTask:
    return WorkflowTask(number=number, available_at=NOW)
