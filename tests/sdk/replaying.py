"""Cold replay: a finished history must be sound, and lead the same code to the same end.

The replayer is the release's own public `Replayer`; it learns the workflow type and the arguments
from the history alone.
"""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found,untyped-decorator,no-any-return"

from collections import Counter
from collections.abc import Sequence
from typing import Any

from durable_workflow import Replayer, serializer, workflow
from durable_workflow.workflow import CompleteWorkflow, ContinueAsNew, FailWorkflow

from tests.sdk import programs
from tests.sdk.release import since

Event = dict[str, Any]

CLOSING = (
    "WorkflowCompleted",
    "WorkflowFailed",
    "WorkflowCancelled",
    "WorkflowTerminated",
    "WorkflowTimedOut",
    "WorkflowContinuedAsNew",
)

# What ends an operation. A condition's time-out may be told twice, as the wait and as its timer.
_OUTCOMES = {
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
    "ServiceCallCompleted": "service",
    "ServiceCallFailed": "service",
    "ServiceCallCancelled": "service",
    "SideEffectRecorded": "marker",
    "VersionMarkerRecorded": "marker",
    "SearchAttributesUpserted": "marker",
    "MemoUpserted": "marker",
    "ConditionWaitSatisfied": "wait",
    "ConditionWaitTimedOut": "wait",
}

# What the server notes while it closes a run from outside, before the run's last event.
_CLOSING_STEPS = ("CancelRequested", "TerminateRequested", "ActivityCancelled", "TimerCancelled")

_ENDS = (CompleteWorkflow, FailWorkflow)
_CANCELS = (workflow.CancelDurableOperation,) if since("2.0.0") else ()
_REPLAYER = Replayer(workflows=programs.WORKFLOWS)


def kind(event: Event) -> str:
    """The event's type."""
    return str(event["event_type"])


def kinds(events: Sequence[Event]) -> list[str]:
    """The types of the events, in order."""
    return [kind(event) for event in events]


def decoded(envelope: Any) -> Any:
    """What a payload envelope of this release says."""
    return serializer.decode_envelope(envelope, codec="avro")


def require_sound(events: Sequence[Event]) -> None:
    """Positions without gaps, one outcome for each operation, and an end that is the end."""
    positions = [event["sequence"] for event in events]
    assert positions == list(range(1, len(events) + 1)), f"positions have gaps: {positions}"

    ids = [event["id"] for event in events]
    assert len(set(ids)) == len(ids), "two events share an id"

    outcomes = Counter(
        (_OUTCOMES[kind(event)], event["payload"]["sequence"])
        for event in events
        if kind(event) in _OUTCOMES and "sequence" in event["payload"]
    )
    repeated = [operation for operation, times in outcomes.items() if times > 1]
    assert not repeated, f"operations ended more than once: {repeated}"

    closing = [kind(event) for event in events if kind(event) in CLOSING]
    assert len(closing) <= 1, f"the run closed more than once: {closing}"
    if closing:
        # A rejected start of the same id may still be noted on the closed run.
        after = kinds(events)[kinds(events).index(closing[0]) + 1 :]
        assert not set(after) - {"StartRejected", "StartAccepted", "ParentClosePolicyApplied"}, (
            f"events after the end: {after}"
        )


def replay_cold(events: Sequence[Event], *, run_id: str, following: Sequence[Event] | None) -> None:
    """Replay the finished run and compare its end; `following` is the run it continued as."""
    closing = next((event for event in events if kind(event) in CLOSING), None)
    assert closing is not None, f"the run is still open: {kinds(events)}"
    commands = _commands(events, events, run_id)
    end = commands[-1] if commands else None
    payload = closing["payload"]

    if kind(closing) == "WorkflowCompleted":
        _require_only_cancels(commands[:-1])
        assert isinstance(end, CompleteWorkflow), f"replay ended in {end!r}"
        recorded = decoded(payload["output"])
        assert end.result == recorded, f"replay returned {end.result!r}, history {recorded!r}"
    elif kind(closing) == "WorkflowFailed":
        _require_only_cancels(commands[:-1])
        assert isinstance(end, FailWorkflow), f"replay ended in {end!r}"
        assert (end.message, end.exception_type) == (payload["message"], payload["exception_type"])
    elif kind(closing) == "WorkflowContinuedAsNew":
        assert isinstance(end, ContinueAsNew), f"replay ended in {end!r}"
        assert following is not None, "the run it continued as is missing"
        started = next(event for event in following if kind(event) == "WorkflowStarted")
        assert end.arguments == decoded(started["payload"]["input"])
    else:
        before = _before_the_closing(events)
        commands = _commands(before, events, run_id)
        ended = [command for command in commands if isinstance(command, _ENDS)]
        if "CooperativeCancellationDelivered" in kinds(events) and ended:
            # The code was asked to cancel, and did not catch it.
            (end,) = ended
            assert isinstance(end, FailWorkflow)
            assert end.exception_type == "WorkflowCancelled"
            return
        assert not ended, f"the run was closed from outside, yet its code ended in {ended!r}"


def _commands(seen: Sequence[Event], events: Sequence[Event], run_id: str) -> Sequence[Any]:
    """What the code asks for after what it has seen of a history."""
    started = next(event for event in events if kind(event) == "WorkflowStarted")
    workflow_id = started["payload"]["workflow_instance_id"]
    return _REPLAYER.replay(list(seen), workflow_id=workflow_id, run_id=run_id).commands


def _before_the_closing(events: Sequence[Event]) -> list[Event]:
    """What the code knew before the run was closed from outside, which cancels its operations."""
    position = next(number for number, event in enumerate(events) if kind(event) in CLOSING)
    while kind(events[position - 1]) in _CLOSING_STEPS:
        position -= 1
    return list(events[:position])


def _require_only_cancels(commands: Sequence[Any]) -> None:
    """The cancel of a selection member that had finished is emitted again in every replay."""
    others = [command for command in commands if not isinstance(command, _CANCELS)]
    assert not others, f"replay emitted {others!r} before its end"
