"""Parallel groups and selections, under the sequences that the server allots.

The worker guesses the base sequence of a group and is wrong in some programs. The allotted
sequences are authoritative, so every claimed path is moved by the difference before it is recorded.
"""

from typing import Any

from perdure.core.rejection import InvalidCommands
from perdure.core.run.operation import (
    ConditionWait,
    Group,
    GroupMode,
    Member,
    Metadata,
    Operation,
    SignalWait,
)
from perdure.core.run.state import Run


class Rebase:
    """Moves the paths of one completion. All leaves of one group move by the same distance."""

    __slots__ = ("_bases", "_distances", "_missing")

    def __init__(self) -> None:
        self._bases: dict[str, int] = {}
        self._distances: dict[str, int] = {}
        self._missing: dict[str, int] = {}

    def seat(self, path: list[Metadata], following: int) -> tuple[int, Metadata]:
        """The sequence of a leaf, and its group members.

        A group begins at the next free sequence when the first of its leaves is seated.
        """
        base = self._bases.setdefault(str(path[0]["parallel_group_id"]), following)
        sequence = base + int(path[0]["parallel_group_index"])
        return sequence, self.metadata(path, sequence)

    def metadata(self, path: list[Metadata], sequence: int) -> Metadata:
        """The group members of a leaf that was given `sequence`, ready to be copied to events."""
        outer = path[0]
        claimed = str(outer["parallel_group_id"])
        index = int(outer["parallel_group_index"])
        if claimed not in self._distances:
            self._distances[claimed] = sequence - index - int(outer["parallel_group_base_sequence"])
            self._missing[claimed] = int(outer["parallel_group_size"])
        self._missing[claimed] -= 1
        distance = self._distances[claimed]
        moved = [_move(entry, distance) for entry in path]
        if moved[0]["parallel_group_base_sequence"] + index != sequence:
            raise InvalidCommands(f"the members of {claimed} are not consecutive")
        return {**moved[-1], "parallel_group_path": moved}

    def require_complete(self) -> None:
        """Refuse incomplete groups: a run would wait for the missing leaves for ever."""
        for claimed, missing in self._missing.items():
            if missing != 0:
                raise InvalidCommands(f"some members of {claimed} are missing")


def _move(entry: Metadata, distance: int) -> Metadata:
    if distance == 0:
        return entry
    base = int(entry["parallel_group_base_sequence"]) + distance
    prefix = str(entry["parallel_group_id"]).rsplit(":", 2)[0]
    moved: dict[str, Any] = {
        **entry,
        "parallel_group_id": f"{prefix}:{base}:{entry['parallel_group_size']}",
        "parallel_group_base_sequence": base,
    }
    if "selection_member_base_sequence" in entry:
        moved["selection_member_base_sequence"] = (
            int(entry["selection_member_base_sequence"]) + distance
        )
    return moved


def join(run: Run, operation: Operation) -> None:
    """Add an operation with metadata to its outermost group; the first one creates the group."""
    if operation.metadata is None:
        return
    outer = operation.metadata["parallel_group_path"][0]
    base = outer["parallel_group_base_sequence"]
    operation.group = base
    select = is_selected(operation.metadata)
    group = run.groups.get(base)
    if group is None:
        size = outer["parallel_group_size"]
        group = run.groups[base] = Group(
            mode=GroupMode.SELECT if select else GroupMode.ALL,
            base=base,
            size=size,
            open=size,
            unrecorded=size,
            group_id=outer["parallel_group_id"],
        )
    if select:
        _enter_member(group, outer, operation)


def is_selected(metadata: Metadata) -> bool:
    """Whether an operation with this metadata belongs to a selection."""
    outer: Metadata = metadata["parallel_group_path"][0]
    return outer.get("parallel_group_mode") == "select"


def _enter_member(group: Group, outer: Metadata, operation: Operation) -> None:
    index = outer["selection_member_index"]
    if any(member.index == index for member in group.members):
        return
    base, size = outer["selection_member_base_sequence"], outer["selection_member_size"]
    kind = outer["selection_member_kind"]
    identity = f"group:{base}:{size}" if kind == "group" else operation.identity
    group.members.append(
        Member(outer["selection_member_key"], index, base, size, kind, identity, open=size)
    )


def join_ordered(run: Run, operations: list[Operation]) -> None:
    """Group operations of one completion without metadata, as 0.4 workers send them.

    Such a worker binds results by their order in history, so they are recorded together, in order.
    """
    if len(operations) < 2:
        return
    base = operations[0].sequence
    size = len(operations)
    run.groups[base] = Group(GroupMode.ORDERED, base, size, open=size, unrecorded=size)
    for operation in operations:
        operation.group = base


def is_blocked(run: Run) -> bool:
    """Whether the code cannot have advanced: a step it waits for has no outcome in history.

    A worker that is woken nevertheless sends its open steps again; they must not be taken twice.
    """
    for group in run.groups.values():
        if group.mode is GroupMode.SELECT and group.winner is None:
            return True
    for sequence, operation in run.operations.items():
        if operation.detached or (sequence == run.wait and _may_be_over(operation)):
            continue
        base = operation.group
        if base not in run.groups or run.groups[base].mode is not GroupMode.SELECT:
            return True
    return False


def _may_be_over(wait: Operation) -> bool:
    """Only the code can evaluate its condition; a signal wait ends with its signal."""
    return isinstance(wait, ConditionWait) or (
        isinstance(wait, SignalWait) and wait.signal is not None
    )
