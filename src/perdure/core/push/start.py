"""Start of push runs: by an event, a call, a schedule, a failure, or as a rerun."""

from typing import Any

import msgspec
from msgspec import Struct, field

from perdure.core import instant
from perdure.core.intake.expression import Event
from perdure.core.push.effect import Joined, Pinned
from perdure.core.run.context import Context
from perdure.core.run.history import Raw, encode, raw, record
from perdure.core.run.push import EvalCase, Meters, Push, SpendCap, StepRetry
from perdure.core.run.start import delay_start
from perdure.core.run.state import Dialect, Parent, Run
from perdure.core.run.task import request_task


class PushStart(Struct, frozen=True, kw_only=True):
    """What to run, and why. `arguments` opens every pass request: one event, or several."""

    namespace: str
    app: str
    workflow: str
    arguments: bytes
    event_name: str
    trigger: str = "event"
    event_id: str | None = None
    pin: str = ""
    retry: StepRetry = field(default_factory=StepRetry)
    handles_failure: bool = False
    failure_of: str | None = None
    error: bytes | None = None
    session: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    replay_of: str | None = None
    fork: bytes | None = None
    vault: str = ""
    """The run whose stored results this one takes over, if it starts with finished steps."""
    parent: Parent | None = None
    depth: int = 0
    delay: int = 0
    singleton: str | None = None
    """The record that marks this as the only run of its kind."""
    slot: str | None = None
    slot_limit: int = 0
    cap: SpendCap | None = None
    pass_timeout: int | None = None
    meters: Meters | None = None
    case: EvalCase | None = None
    shift: int = 0
    """How far its place in the waiting order is moved forward, in time."""


def event_arguments(name: str, data: bytes | None) -> bytes:
    """The opening of pass requests of a run that one event started."""
    return b'{"event":{"name":%b,"data":%b}}' % (encode(name), data or b"null")


def trigger_of(run: Run) -> Event:
    """The event that started a run, as its code receives it; the first of a batch."""
    event = _head_decoder.decode(run.arguments).event
    return Event(event.name, bytes(event.data))


class _HeadEvent(Struct):
    name: str
    data: Raw = Raw(b"null")


class _Head(Struct):
    event: _HeadEvent


_head_decoder = msgspec.json.Decoder(_Head)


def start_push_run(request: PushStart, ctx: Context, run_id: str | None = None) -> Run:
    """A new run, ready for its first pass."""
    run_id = run_id or ctx.ids.ulid()
    run = Run(
        run_id=run_id,
        namespace=request.namespace,
        # Push runs have no client-chosen id, so each is the only run of its workflow id.
        workflow_id=run_id,
        workflow_type=request.workflow,
        queue=request.app,
        run_number=1,
        started_at=ctx.now,
        dialect=Dialect.PUSH,
        parent=request.parent,
        arguments=request.arguments,
        push=Push(
            event_name=request.event_name,
            trigger=request.trigger,
            event_id=request.event_id,
            pin=request.pin,
            retry=request.retry,
            handles_failure=request.handles_failure,
            failure_of=request.failure_of,
            error=request.error,
            session=request.session,
            tags=request.tags,
            replay_of=request.replay_of,
            fork=request.fork,
            vault=request.vault,
            depth=request.depth,
            singleton=request.singleton,
            slot=request.slot,
            slot_limit=request.slot_limit,
            cap=request.cap,
            pass_timeout=request.pass_timeout,
            meters=request.meters,
            case=request.case,
            trace_id=ctx.ids.hex(32),
            span_id=ctx.ids.hex(16),
        ),
    )
    run.unsaved.created = True
    record(run, ctx, "WorkflowStarted", _started(run, request, ctx))
    request_task(run, ctx)
    assert run.task is not None
    run.task.available_at -= request.shift
    delay_start(run, ctx, request.delay)
    if request.pin:
        run.unsaved.effects.append(Pinned(run))
    if request.session:
        run.unsaved.effects.append(Joined(run))
    return run


def _started(run: Run, request: PushStart, ctx: Context) -> dict[str, Any]:
    parent = request.parent
    return {
        "workflow_type": run.workflow_type,
        "workflow_instance_id": run.workflow_id,
        "workflow_run_id": run.run_id,
        "timestamp": instant.text(ctx.now),
        "payload_codec": run.codec,
        "input": Raw(run.arguments),
        "dialect": run.dialect.value,
        "app": request.app,
        "trigger": request.trigger,
        "event_id": request.event_id,
        "runner": request.pin or None,
        "failure_of": request.failure_of,
        "replay_of": request.replay_of,
        "fork": raw(request.fork),
        "parent_workflow_run_id": parent and parent.run_id,
        "parent_sequence": parent and parent.sequence,
    }
