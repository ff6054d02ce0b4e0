"""Redrive: continues a failed run in a new one that takes over all steps before the failed one.

The new run's history begins with copies of the old one's events, up to a boundary: the step that
failed, or the first step before it that never ended. The code replays them and reaches the boundary
as a new step. Copied events keep their ids and times, so references stay valid.
"""

from typing import Any

import msgspec
from msgspec import Raw, Struct, field

from perdure.core.payload import Frame, PayloadError, decode, encode, frame_of
from perdure.core.rejection import RedriveUnavailable, RunNotFailed, StructuralLimitExceeded
from perdure.core.run.context import Context
from perdure.core.run.inbox import Message, Signal, StreamMessage, Update
from perdure.core.run.message_stream import message_of, resume_streams
from perdure.core.run.reframe import reframed
from perdure.core.run.settle import settle
from perdure.core.run.standalone import ActivityRequest, start_standalone
from perdure.core.run.start import open_run, record_accepted, set_deadlines
from perdure.core.run.state import Dialect, Run
from perdure.core.run.status import RunStatus

_OPENINGS = {
    "ActivityScheduled",
    "TimerScheduled",
    "ChildWorkflowScheduled",
    "ConditionWaitOpened",
    "SignalWaitOpened",
    "ServiceCallStarted",
}
_WAITS = {"ConditionWaitOpened", "SignalWaitOpened"}
_SUCCESSES = {
    "ActivityCompleted",
    "TimerFired",
    "ChildRunCompleted",
    "ConditionWaitSatisfied",
    "ConditionWaitTimedOut",
    "SignalApplied",
    "ServiceCallCompleted",
}
_FAILURES = {
    "ActivityFailed",
    "ActivityTimedOut",
    "ActivityCancelled",
    "TimerCancelled",
    "ChildRunFailed",
    "ChildRunCancelled",
    "ChildRunTerminated",
    "ServiceCallFailed",
    "ServiceCallCancelled",
}
_BEGINNINGS = {"StartAccepted", "WorkflowStarted"}
_CANCELLATIONS = {"CooperativeCancellationRequested", "CooperativeCancellationDelivered"}
_ENDINGS = {
    "WorkflowFailed",
    "WorkflowTimedOut",
    "ParentClosePolicyApplied",
    "SignalRejected",
    *_CANCELLATIONS,
}
"""Events that end a run or request its end. They do not apply to the new run."""
_UPDATES = {"UpdateAccepted", "UpdateApplied", "UpdateCompleted", "UpdateRejected"}
_CLOSING_STEPS = {"ActivityCancelled", "TimerCancelled", "ParentClosePolicyApplied"}
"""Events that a timed-out run records just before its last event."""


_SERVICE_RESULT = "durable-workflow.v2.sdk-python.nexus-operation-result"


class _Level(Struct):
    parallel_group_base_sequence: int


class _Payload(Struct):
    sequence: int | None = None
    parallel_group_path: list[_Level] | None = None
    timer_kind: str | None = None
    wait_for: str | None = None
    operation_mode: str | None = None
    selection_group_base_sequence: int | None = None
    member_base_sequence: int | None = None
    member_size: int = 1
    activity_execution_id: str | None = None
    failed_step_sequence: int | None = None
    failed_activity_execution_id: str | None = None
    timestamp: str | None = None
    input: Raw = Raw(b"null")
    memo: dict[str, Any] | None = None
    search_attributes: dict[str, Any] | None = None
    merged: Raw = Raw(b"null")
    result: Raw = Raw(b"null")
    workflow_command_id: str = ""
    signal_id: str = ""
    signal_name: str = ""
    signal_wait_id: str | None = None
    update_id: str = ""
    update_name: str = ""
    arguments: Raw = Raw(b"null")


class _Event(Struct):
    event_type: str
    payload: _Payload


class _Inline(Struct):
    blob: str


_decoder = msgspec.json.Decoder(_Event)


class _Step(Struct):
    """A step of the failed run. `base` is the first step that the code opened together with it."""

    base: int
    is_wait: bool
    execution_id: str | None = None
    ended: bool = False
    failed: bool = False


class Prefix(Struct, frozen=True, kw_only=True):
    """What a new run takes over from a failed one."""

    run_id: str
    event_count: int
    next_sequence: int
    timestamp: str | None
    arguments: bytes
    events: list[bytes]
    messages: list[Message]
    unapplied: list[Signal]
    handed_over: list[StreamMessage] = field(default_factory=list)
    memo: dict[str, Any] = field(default_factory=dict)
    search_attributes: dict[str, Any] = field(default_factory=dict)


def require_failed(run: Run) -> None:
    """Require a failed run of a worker that replays histories."""
    if run.dialect is not Dialect.PULL:
        raise RedriveUnavailable(
            f"run {run.run_id} is a push run, which cannot be redriven", run_id=run.run_id
        )
    if run.status is not RunStatus.FAILED:
        raise RunNotFailed(
            f"run {run.run_id} is {run.status}; only failed runs can be redriven",
            run_id=run.run_id,
            run_status=run.status.value,
            outcome="rejected_not_failed",
            rejection_reason="run_not_failed",
        )
    if run.cancellation is not None and run.cancellation.delivered is not None:
        # Its code took the clean-up path from there on; a replay without the request would not.
        raise RunNotFailed(
            f"run {run.run_id} was cancelled by its own code before it failed",
            run_id=run.run_id,
            run_status=run.status.value,
            outcome="rejected_not_failed",
            rejection_reason="run_not_failed",
        )


def read_prefix(run_id: str, history: list[bytes]) -> Prefix:
    """Read what the next run takes over from the whole history of a failed run."""
    events = [_decoder.decode(encoded) for encoded in history]
    boundary = _find_boundary(events)
    cut = _find_cut(events, boundary)
    late = {
        event.payload.update_id for event in events[cut:] if event.event_type == "UpdateApplied"
    }
    copied: list[bytes] = []
    messages: list[Message] = []
    waiting: dict[str, Signal] = {}
    handed_over: list[StreamMessage] = []
    timestamp, arguments, memo, attributes = None, b"null", {}, {}
    for position, (event, encoded) in enumerate(zip(events, history, strict=True)):
        payload = event.payload
        if event.event_type == "WorkflowStarted":
            timestamp, arguments = payload.timestamp, bytes(payload.input)
            memo, attributes = payload.memo or {}, payload.search_attributes or {}
        if not _is_kept(event, boundary, position < cut, late):
            if event.event_type == "SignalReceived":
                signal = _signal(payload)
                messages.append(message_of(signal) or signal)
            elif event.event_type == "UpdateApplied":
                messages.append(_update(payload))
            continue
        match event.event_type:
            case "MemoUpserted":
                memo = _merged_memo(payload)
            case "SearchAttributesUpserted":
                attributes = msgspec.json.decode(payload.merged)
            case "SignalReceived" if (payload.signal_wait_id or "").startswith("signal-command:"):
                waiting[payload.signal_id] = _signal(payload)
            case "SignalApplied":
                waiting.pop(payload.signal_id, None)
            case "SignalReceived":
                message = message_of(_signal(payload))
                handed_over += [] if message is None else [message]
            case _:
                pass
        # Sequences 1 and 2 are the start events of the new run.
        encoded = _without_key(event, encoded)
        copied.append(_renumbered(encoded, len(copied) + 3, event.event_type, run_id))
    return Prefix(
        run_id=run_id,
        event_count=len(history),
        next_sequence=boundary,
        timestamp=timestamp,
        arguments=arguments,
        events=copied,
        messages=messages,
        unapplied=list(waiting.values()),
        handed_over=handed_over,
        memo=memo,
        search_attributes=attributes,
    )


def redrive(failed: Run, ctx: Context, prefix: Prefix) -> Run:
    """Start a run that continues from the step that failed. Its time limits start anew."""
    require_failed(failed)
    if failed.hosted is not None:
        return _restart_standalone(failed, ctx, prefix)
    if len(prefix.events) >= ctx.bounds.history_events_max:
        raise StructuralLimitExceeded(
            f"run {failed.run_id} cannot be redriven: it would copy {len(prefix.events)} events",
            limit_kind="history_event_count",
            current_value=len(prefix.events),
            configured_limit=ctx.bounds.history_events_max,
        )
    run = Run(
        run_id=ctx.ids.ulid(),
        namespace=failed.namespace,
        workflow_id=failed.workflow_id,
        workflow_type=failed.workflow_type,
        queue=failed.queue,
        run_number=failed.run_number + 1,
        started_at=ctx.now,
        business_key=failed.business_key,
        frame=failed.frame,
        plain_input=failed.plain_input,
        memo=prefix.memo,
        search_attributes=prefix.search_attributes,
        priority=failed.priority,
        fairness_key=failed.fairness_key,
        fairness_weight=failed.fairness_weight,
        trace=failed.trace,
        build_id=failed.build_id,
        next_sequence=prefix.next_sequence,
        keeps_signals=failed.keeps_signals,
        unapplied=list(prefix.unapplied),
        validators=list(failed.validators),
        redriven_from_run_id=failed.run_id,
        arguments=prefix.arguments,
        late_signal_tasks_max=failed.late_signal_tasks_max,
        signals_per_task_max=failed.signals_per_task_max,
    )
    set_deadlines(
        run,
        ctx,
        execution=failed.execution_timeout_seconds,
        run_timeout=failed.run_timeout_seconds,
    )
    run.unsaved.created = True
    # The code derives its clock from the start event; decisions based on it must not change.
    record_accepted(run, ctx, {"timestamp": prefix.timestamp} if prefix.timestamp else {})
    for event in prefix.events:
        run.history_count += 1
        run.events.append(event)
        run.events_bytes += len(event)
        run.history_bytes += len(event)
        run.unsaved.events.append(event)
    resume_streams(run, failed, prefix.handed_over)
    open_run(run, ctx, delay=0)
    for message in (*prefix.messages, *failed.unseen):
        _add_to_inbox(run, ctx, message)
    settle(run, ctx)
    return run


def _restart_standalone(failed: Run, ctx: Context, prefix: Prefix) -> Run:
    """Start a standalone activity again: it has no steps to take over."""
    hosted = failed.hosted
    assert hosted is not None
    frame = Frame(failed.frame)
    request = ActivityRequest(
        namespace=failed.namespace,
        activity_id=failed.workflow_id,
        activity_type=hosted.activity_type,
        activity_class=hosted.activity_class,
        queue=failed.queue,
        business_key=failed.business_key,
        arguments=None if failed.plain_input is not None else reframed(prefix.arguments, frame),
        plain=failed.plain_input,
        frame=frame,
        retry=hosted.retry,
        timeouts=hosted.timeouts,
    )
    run = start_standalone(request, ctx, before=failed)
    run.redriven_from_run_id = failed.run_id
    return run


def _add_to_inbox(run: Run, ctx: Context, message: Message) -> None:
    """Put a message that the failed run did not handle into the inbox of the new run."""
    if isinstance(message, Update):
        message = msgspec.structs.replace(message, accepted_at=ctx.now)
        run.updates_open += 1
    message.received_at = message.received_at or ctx.now
    run.inbox[run.inbox_next] = message
    run.unsaved.inbox.add(run.inbox_next)
    run.inbox_next += 1


# Reading a history --------------------------------------------------------------------------------


def _find_boundary(events: list[_Event]) -> int:
    """The sequence of the first step that is not taken over."""
    steps = _read_steps(events)
    last = max(steps, default=0)
    payload = events[-1].payload
    named = (
        None if payload.failed_step_sequence is None else steps.get(payload.failed_step_sequence)
    )
    execution_id = payload.failed_activity_execution_id
    if named is not None and named.failed and named.execution_id == execution_id:
        return _before_unfinished(steps, named.base, last)
    # The report named no failed step. If the last steps failed, it was one of them; otherwise the
    # code itself failed, after all its steps.
    together = [step for step in steps.values() if last and step.base == steps[last].base]
    failed = any(step.failed for step in together)
    return _before_unfinished(steps, steps[last].base if failed else last + 1, last)


def _before_unfinished(steps: dict[int, _Step], boundary: int, last: int) -> int:
    open_bases = [
        step.base
        for sequence, step in steps.items()
        # The code is past every wait but its last, also past those without an end event.
        if sequence < boundary and not step.ended and (not step.is_wait or sequence == last)
    ]
    return min([boundary, *open_bases])


def _read_steps(events: list[_Event]) -> dict[int, _Step]:
    steps: dict[int, _Step] = {}
    closing = _closing_position(events)
    together: int | None = None
    for position, event in enumerate(events):
        payload, sequence = event.payload, event.payload.sequence
        if event.event_type == "SelectionOperationCancelled":
            assert payload.member_base_sequence is not None
            for offset in range(payload.member_size):
                if payload.member_base_sequence + offset in steps:
                    steps[payload.member_base_sequence + offset].ended = True
        if sequence is None or event.event_type in _UPDATES or event.event_type in _ENDINGS:
            continue
        if event.event_type in _OPENINGS:
            if sequence in steps:
                # The timer of a wait has the sequence of its wait.
                continue
            path = payload.parallel_group_path
            if path:
                base, together = path[0].parallel_group_base_sequence, None
            else:
                # Steps of one completion without group metadata are awaited as a list.
                base = together = sequence if together is None else together
            is_wait = event.event_type in _WAITS and not path
            steps[sequence] = _Step(base, is_wait, payload.activity_execution_id)
            if event.event_type == "ServiceCallStarted":
                at_once = payload.wait_for == "accepted" or payload.operation_mode == "async"
                steps[sequence].ended = at_once
                together = None
            continue
        if event.event_type in _SUCCESSES or event.event_type in _FAILURES:
            step = steps.get(sequence)
            together = None
            timeout_of_wait = (
                payload.timer_kind is not None and event.event_type == "TimerCancelled"
            )
            if position >= closing or timeout_of_wait:
                continue
            if step is None:
                # A rejected call has no opening event.
                step = steps[sequence] = _Step(sequence, is_wait=False)
            step.ended = True
            step.failed = event.event_type in _FAILURES
        elif sequence not in steps:
            # Markers end when they are recorded.
            steps[sequence] = _Step(sequence, is_wait=False, ended=True)
            together = None
    return steps


def _closing_position(events: list[_Event]) -> int:
    """The position of the first event that was recorded because the run timed out."""
    position = len(events) - 1
    if events[position].event_type != "WorkflowTimedOut":
        return position
    while events[position - 1].event_type in _CLOSING_STEPS:
        position -= 1
    return position


def _find_cut(events: list[_Event], boundary: int) -> int:
    """The position of the first event that belongs to a step at or after the boundary."""
    for position, event in enumerate(events):
        if event.event_type in _BEGINNINGS or event.event_type in _UPDATES:
            continue
        if event.event_type in _ENDINGS or _step_of(event) >= boundary:
            return position
    return len(events)


def _step_of(event: _Event) -> int:
    """The sequence of the step that an event belongs to; 0 if it belongs to none."""
    payload = event.payload
    for sequence in (
        payload.selection_group_base_sequence,
        payload.member_base_sequence,
        payload.sequence,
    ):
        if sequence is not None:
            return sequence
    return 0


def _is_kept(event: _Event, boundary: int, is_early: bool, late: set[str]) -> bool:
    if event.event_type in _BEGINNINGS or event.event_type in _ENDINGS:
        return False
    if event.event_type in _UPDATES:
        return is_early and event.payload.update_id not in late
    step = _step_of(event)
    return step < boundary if step else is_early


def _renumbered(encoded: bytes, sequence: int, event_type: str, run_id: str) -> bytes:
    """The event with another sequence in history; all else is unchanged."""
    head, _, rest = encoded.partition(b',"sequence":')
    _, _, rest = rest.partition(b",")
    if event_type == "ActivityCompleted" and b'"reused_from_run_id":' not in rest:
        rest = rest[:-2] + f',"reused_from_run_id":"{run_id}"}}}}'.encode()
    return b'%b,"sequence":%d,%b' % (head, sequence, rest)


def _without_key(event: _Event, encoded: bytes) -> bytes:
    """The event without the idempotency key of a service call, which contains the old run's id.

    SDKs before 2.12 record the outcome of a call, with the key, as a side effect.
    """
    if event.event_type.startswith("ServiceCall"):
        document = msgspec.json.decode(encoded)
        document["payload"].get("service_call", {}).pop("idempotency_key", None)
        return msgspec.json.encode(document)
    if event.event_type != "SideEffectRecorded":
        return encoded
    try:
        blob = msgspec.json.decode(event.payload.result, type=str)
        value, frame = decode(blob), frame_of(blob)
    except (msgspec.DecodeError, PayloadError):
        return encoded
    if not isinstance(value, dict) or value.get("schema") != _SERVICE_RESULT or frame is None:
        return encoded
    value.pop("idempotency_key", None)
    document = msgspec.json.decode(encoded)
    document["payload"]["result"] = encode(value, frame)
    return msgspec.json.encode(document)


def _merged_memo(payload: _Payload) -> dict[str, Any]:
    try:
        memo = decode(msgspec.json.decode(payload.merged, type=_Inline).blob)
    except (msgspec.DecodeError, PayloadError):
        return {}
    return memo if isinstance(memo, dict) else {}


def _signal(payload: _Payload) -> Signal:
    return Signal(
        signal_id=payload.signal_id,
        command_id=payload.workflow_command_id,
        name=payload.signal_name,
        arguments=_arguments(payload),
        received_at=0,
    )


def _update(payload: _Payload) -> Update:
    return Update(
        update_id=payload.update_id,
        name=payload.update_name,
        arguments=_arguments(payload),
        received_at=0,
    )


def _arguments(payload: _Payload) -> bytes | None:
    encoded = bytes(payload.arguments)
    return None if encoded == b"null" else encoded
