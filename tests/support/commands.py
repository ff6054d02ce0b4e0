"""Commands as workers send them, single and in the groups that the 2.x SDK annotates."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar, cast

import msgspec

from perdure.core.payload import Frame, encode
from perdure.core.run.command import (
    Authored,
    CancelSelectionOperation,
    Command,
    CompleteRun,
    CompleteUpdate,
    ContinueAsNew,
    FailRun,
    FailUpdate,
    LocalAttempt,
    LocalHeartbeat,
    OpenConditionWait,
    OpenSignalWait,
    PrepareLocalActivity,
    RecordLocalActivity,
    RecordSideEffect,
    RecordVersionMarker,
    ScheduleActivity,
    StartChild,
    StartTimer,
    UpsertMemo,
    UpsertSearchAttributes,
)
from perdure.core.run.operation import ActivityTimeouts, Metadata, RetryPolicy
from perdure.core.run.reframe import envelope_json
from perdure.core.run.state import Run

ARGUMENTS = envelope_json("wwHioz3/VYAiNwA=")
RESULT = envelope_json("wwHioz3/VYAiNwQC")

Key = TypeVar("Key", bound=str | int)
Member: TypeAlias = Authored | Sequence[Authored]
"""What stands under one key of a selection: a step, or a list of them."""


def activity(
    activity_type: str = "charge",
    *,
    queue: str | None = None,
    retry: RetryPolicy | None = None,
    cancellation_policy: str | None = None,
    timeouts: Mapping[str, int] | None = None,
    **timeout: int,
) -> ScheduleActivity:
    """Time-outs are lengths in seconds, by their names: each by itself, or several as a mapping."""
    return ScheduleActivity(
        activity_type=activity_type,
        arguments=ARGUMENTS,
        queue=queue,
        retry=retry,
        timeouts=ActivityTimeouts(**(timeouts or {}), **timeout),
        cancellation_policy=cancellation_policy,
    )


def retries(
    attempts_max: int | None, *backoff_seconds: int, non_retryable: Iterable[str] = ()
) -> RetryPolicy:
    return RetryPolicy(attempts_max, list(backoff_seconds), list(non_retryable))


def timer(seconds: int = 60) -> StartTimer:
    return StartTimer(delay_seconds=seconds)


def child(
    workflow_type: str = "shipment",
    *,
    queue: str | None = None,
    policy: str | None = None,
    retry: RetryPolicy | None = None,
    cancellation_policy: str | None = None,
    execution_timeout_seconds: int | None = None,
    run_timeout_seconds: int | None = None,
) -> StartChild:
    return StartChild(
        workflow_type=workflow_type,
        arguments=ARGUMENTS,
        queue=queue,
        parent_close_policy=policy,
        cancellation_policy=cancellation_policy,
        retry=retry,
        execution_timeout_seconds=execution_timeout_seconds,
        run_timeout_seconds=run_timeout_seconds,
    )


def condition(
    key: str | None = "gate", *, fingerprint: str | None = None, timeout: int | None = None
) -> OpenConditionWait:
    return OpenConditionWait(key=key, fingerprint=fingerprint, timeout_seconds=timeout)


def signal_wait(name: str = "approve", *, timeout: int | None = None) -> OpenSignalWait:
    return OpenSignalWait(signal_name=name, timeout_seconds=timeout)


def side_effect(blob: str = "wwHioz3/VYAiNwQC") -> RecordSideEffect:
    return RecordSideEffect(result=msgspec.json.encode(blob))


def version_marker(change_id: str = "tax", version: int = 2) -> RecordVersionMarker:
    return RecordVersionMarker(
        change_id=change_id, version=version, min_supported=1, max_supported=3
    )


def local_activity(outcome: str = "completed", *, failures: int = 0) -> RecordLocalActivity:
    """Work that the worker did itself, after some failures, with a sign of life in between."""
    retried = [
        _local_attempt(number, "failed", retry_reason="failure")
        for number in range(1, failures + 1)
    ]
    last = _local_attempt(failures + 1, outcome)
    done = outcome == "completed"
    return RecordLocalActivity(
        activity_type="charge",
        arguments=ARGUMENTS,
        attempts=[*retried, last],
        result=RESULT if done else None,
        message=None if done else "no luck",
        retry=RetryPolicy(failures + 1) if failures else None,
    )


def _local_attempt(number: int, outcome: str, retry_reason: str | None = None) -> LocalAttempt:
    return LocalAttempt(
        attempt_id=f"{number:064x}",
        number=number,
        outcome=outcome,
        duration_ms=7,
        heartbeats=[LocalHeartbeat(3, b'{"done":1}')],
        message=None if outcome == "completed" else "no luck",
        exception_type=None if outcome == "completed" else "NoLuck",
        timeout_kind="heartbeat" if outcome == "timed_out" else None,
        retry_reason=retry_reason,
    )


def attributes(**values: Any) -> UpsertSearchAttributes:
    return UpsertSearchAttributes(attributes=values)


def memo(**entries: Any) -> UpsertMemo:
    return UpsertMemo(envelope=envelope_json(encode(entries, Frame.VALUE)), entries=entries)


def complete_update(run: Run, result: bytes | None = RESULT) -> CompleteUpdate:
    """The handler's result for the update that the run's task asks about."""
    assert run.update is not None
    return CompleteUpdate(update_id=run.update.update_id, result=result)


def fail_update(run: Run, message: str = "no such entry") -> FailUpdate:
    assert run.update is not None
    return FailUpdate(
        update_id=run.update.update_id,
        message=message,
        exception_type="KeyError",
        exception_class="KeyError",
    )


def complete_run(result: bytes | None = RESULT) -> CompleteRun:
    return CompleteRun(result=result)


def fail_run(
    message: str = "out of stock",
    *,
    exception_type: str = "OutOfStock",
    non_retryable: bool = False,
) -> FailRun:
    return FailRun(
        message=message,
        exception_type=exception_type,
        exception_class=exception_type,
        non_retryable=non_retryable,
    )


def continue_as_new(
    *, arguments: bytes | None = None, queue: str | None = None, workflow_type: str | None = None
) -> ContinueAsNew:
    return ContinueAsNew(arguments=arguments, queue=queue, workflow_type=workflow_type)


# Groups, annotated as the 2.x SDK does ------------------------------------------------------------


def in_parallel(*members: Authored | Sequence[Any], base: int = 1) -> list[Command]:
    """A list of the code: one command per leaf. A list among the members is a nested group."""
    return [_with_path(leaf, path) for leaf, path in _annotated(list(members), base)]


def in_selection(members: Mapping[Key, Member], base: int = 1) -> list[Command]:
    """A `select` of the code. A list is a member with several leaves."""
    leaves: list[Command] = []
    size = sum(1 if isinstance(member, Authored) else len(member) for member in members.values())
    for index, (key, member) in enumerate(members.items()):
        first = base + len(leaves)
        is_list = not isinstance(member, Authored)
        inner = [(member, [])] if isinstance(member, Authored) else _annotated(list(member), first)
        for leaf, path in inner:
            outer = {
                **_entry("select-calls", "mixed", base, size, len(leaves)),
                "parallel_group_mode": "select",
                "selection_member_key": key,
                "selection_member_index": index,
                "selection_member_base_sequence": first,
                "selection_member_size": len(inner),
                "selection_member_kind": "group" if is_list else _KINDS[type(leaf)][0],
            }
            leaves.append(_with_path(leaf, [outer, *path]))
    return leaves


def cancel_member(run: Run, key: str | int) -> CancelSelectionOperation:
    """What `handle.cancel()` sends, for a member of the newest selection that has the key."""
    for group in reversed(run.groups.values()):
        for member in group.members:
            if member.key == key:
                assert group.group_id is not None
                return CancelSelectionOperation(
                    group_id=group.group_id,
                    member_key=member.key,
                    member_index=member.index,
                    member_base=member.base,
                    member_size=member.size,
                    kind=member.kind,
                    identity=member.identity,
                )
    raise AssertionError(f"no selection has a member {key!r}")


_KINDS: dict[type, tuple[str, str]] = {
    PrepareLocalActivity: ("activity", "parallel-activities"),
    ScheduleActivity: ("activity", "parallel-activities"),
    StartTimer: ("timer", "parallel-timers"),
    StartChild: ("child", "parallel-children"),
    OpenConditionWait: ("condition", "parallel-conditions"),
}


def _annotated(group: list[Any], base: int) -> list[tuple[Authored, list[Metadata]]]:
    parts: list[tuple[Authored, list[Metadata]]] = []
    for member in group:
        if isinstance(member, Authored):
            parts.append((member, []))
        else:
            parts += _annotated(list(member), base + len(parts))
    kinds = {type(leaf) for leaf, _ in parts}
    kind, prefix = _KINDS[kinds.pop()] if len(kinds) == 1 else ("mixed", "parallel-calls")
    return [
        (leaf, [_entry(prefix, kind, base, len(parts), index), *path])
        for index, (leaf, path) in enumerate(parts)
    ]


def _entry(prefix: str, kind: str, base: int, size: int, index: int) -> Metadata:
    return {
        "parallel_group_id": f"{prefix}:{base}:{size}",
        "parallel_group_kind": kind,
        "parallel_group_base_sequence": base,
        "parallel_group_size": size,
        "parallel_group_index": index,
    }


def _with_path(leaf: Authored, path: list[Metadata]) -> Command:
    return cast(Command, msgspec.structs.replace(leaf, path=path))
