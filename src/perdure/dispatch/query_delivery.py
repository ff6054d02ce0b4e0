"""A leased query with everything that its worker needs: the run as it stands, and its history."""

import msgspec
from msgspec import Raw, Struct

from perdure.core.fleet.worker import Worker
from perdure.core.limits import HISTORY_PAGE_SIZE_MAX
from perdure.core.payload import Frame
from perdure.core.run.message import show_waiting_signals
from perdure.core.run.reframe import plain_envelope
from perdure.core.run.state import Run
from perdure.dispatch.query_messages import QueryLease
from perdure.engine.beat import Engine
from perdure.engine.claims import ShowRun
from perdure.store.interface import Store


class QueryDelivery(Struct, frozen=True, kw_only=True):
    """What is handed to the poller. `events` is the whole history: workers ask for no pages."""

    lease: QueryLease
    run_status: str
    workflow_arguments: bytes
    query_arguments: bytes | None
    events: list[bytes]
    trace: bytes | None = None


class _Standing(Struct, frozen=True, kw_only=True):
    """A copy of a run between two decisions. `arguments` is None when only history has them."""

    run_status: str
    arguments: bytes | None
    count: int
    events: list[bytes]
    waiting: list[bytes]
    trace: bytes | None = None


async def deliver_query(engine: Engine, lease: QueryLease, worker: Worker) -> QueryDelivery | None:
    """Read what a query needs; None if its run is gone."""
    asked = lease.asked

    def copy(run: Run) -> _Standing:
        return _stand(run, worker.frame)

    standing: _Standing | None = await engine.submit(ShowRun(asked.namespace, asked.run_id, copy))
    if standing is None:
        return None
    events = standing.events
    missing = standing.count - len(events)
    if missing:
        events = await _read_events(engine.store, asked.run_id, missing) + events
    arguments = standing.arguments
    if arguments is None:
        arguments = _started_with(events)
    query_arguments = asked.arguments
    if asked.plain is not None:
        query_arguments = plain_envelope(asked.plain, worker.frame)
    return QueryDelivery(
        lease=lease,
        run_status=standing.run_status,
        workflow_arguments=arguments,
        query_arguments=query_arguments,
        events=events + standing.waiting,
        trace=standing.trace,
    )


def _stand(run: Run, frame: Frame) -> _Standing:
    arguments: bytes | None = run.arguments
    if run.is_closed:
        # The cache keeps no arguments of a closed run.
        arguments = None
    elif run.plain_input is not None:
        # No worker has had the run yet, so its frame is still a guess.
        arguments = plain_envelope(run.plain_input, frame)
    return _Standing(
        run_status=run.status.value,
        arguments=arguments,
        count=run.history_count,
        events=list(run.events),
        waiting=show_waiting_signals(run),
        trace=run.trace,
    )


async def _read_events(store: Store, run_id: str, count: int) -> list[bytes]:
    """The first events of a run, page by page, so that a long history holds nobody up."""
    events: list[bytes] = []
    while len(events) < count:
        limit = min(HISTORY_PAGE_SIZE_MAX, count - len(events))
        page = await store.read_history(run_id, len(events), limit)
        if not page:
            raise LookupError(f"history of run {run_id} ends at {len(events)}, not at {count}")
        events += page
    return events


class _Input(Struct):
    input: Raw = Raw(b"null")


class _Event(Struct):
    event_type: str
    payload: _Input = msgspec.field(default_factory=_Input)


_event_decoder = msgspec.json.Decoder(_Event)


def _started_with(events: list[bytes]) -> bytes:
    for encoded in events[:2]:
        event = _event_decoder.decode(encoded)
        if event.event_type == "WorkflowStarted":
            return bytes(event.payload.input)
    return b"null"
