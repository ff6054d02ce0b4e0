"""What a worker may answer: valid batches of commands, drawn by chance.

A batch is what the SDKs send: some markers, then one step of the code, or its end, or nothing.
"""

from typing import Any, cast

from hypothesis import strategies as st

from perdure.core.run.activity import Reported
from perdure.core.run.command import Authored, Command
from perdure.core.run.operation import RetryPolicy
from tests.support.commands import (
    Member,
    activity,
    attributes,
    child,
    complete_run,
    condition,
    continue_as_new,
    fail_run,
    in_parallel,
    in_selection,
    local_activity,
    memo,
    retries,
    side_effect,
    signal_wait,
    timer,
    version_marker,
)

TIMEOUTS = ["schedule_to_start", "start_to_close", "schedule_to_close", "heartbeat"]
POLICIES = [None, retries(3), retries(2, 0, 7), retries(3, 5), retries(None, 5)]
KEYS: list[str | int] = ["a", "b", 0, 1]
CLOSE_POLICIES = [None, "abandon", "request_cancel", "request_cancellation", "terminate"]
CANCEL_POLICIES = [None, "try_cancel", "wait_cancellation_completed", "abandon"]

MARKERS: list[Command] = [
    side_effect(),
    version_marker(),
    attributes(stage="new"),
    attributes(stage=None, amount=7),
    memo(note="a"),
    memo(note=None, colour="red"),
    local_activity(),
    local_activity("failed", failures=2),
]

# Of an attempt: none is a result.
outcomes = st.sampled_from(
    [
        None,
        Reported("x", exception_type="Broken"),
        Reported("x", exception_type="Broken"),
        Reported("x", non_retryable=True),
        Reported("x", cancelled=True),
    ]
)


def _one_of(draw: st.DrawFn, values: list[Any]) -> Any:
    return draw(st.sampled_from(values))


@st.composite
def leaves(draw: st.DrawFn) -> Authored:
    """An activity, a timer or a child."""
    retry: RetryPolicy | None
    match _one_of(draw, ["activity", "activity", "timer", "child"]):
        case "activity":
            retry = _one_of(draw, POLICIES)
            kinds = draw(st.lists(st.sampled_from(TIMEOUTS), max_size=2, unique=True))
            timeouts = {kind: _one_of(draw, [5, 30]) for kind in kinds}
            policy = _one_of(draw, CANCEL_POLICIES)
            return activity(retry=retry, timeouts=timeouts, cancellation_policy=policy)
        case "timer":
            return timer(_one_of(draw, [0, 1, 60]))
        case _:
            policy, retry = _one_of(draw, CLOSE_POLICIES), _one_of(draw, POLICIES)
            timeout = _one_of(draw, [None, None, 30])
            return child(
                policy=policy,
                retry=retry,
                run_timeout_seconds=timeout,
                cancellation_policy=_one_of(draw, CANCEL_POLICIES),
            )


@st.composite
def conditions(draw: st.DrawFn, timeouts: list[int | None]) -> Authored:
    return condition(_one_of(draw, ["gate", "other", None]), timeout=_one_of(draw, timeouts))


@st.composite
def members(draw: st.DrawFn) -> Member:
    """A leaf, or a list of leaves."""
    if _one_of(draw, [True, True, False]):
        return draw(leaves())
    return draw(st.lists(leaves(), min_size=1, max_size=2))


@st.composite
def steps(draw: st.DrawFn) -> list[Command]:
    """One step of the code, under a base that it may have guessed wrongly."""
    base = _one_of(draw, [1, 2, 7])
    match _one_of(draw, ["single", "list", "plain list", "select", "select", "wait", "signal"]):
        case "list":
            return in_parallel(*draw(st.lists(members(), min_size=1, max_size=3)), base=base)
        case "plain list":
            return [cast(Command, draw(leaves())) for _ in range(_one_of(draw, [2, 3]))]
        case "select":
            keys = draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=3, unique=True))
            # Only its time-out ends a selected condition.
            gates = conditions(timeouts=[0, 5, 30])
            options: dict[str | int, Member] = {
                key: draw(st.one_of(members(), members(), gates)) for key in keys
            }
            return in_selection(options, base)
        case "wait":
            return [cast(Command, draw(conditions(timeouts=[None, 0, 5, 30])))]
        case "signal":
            name = _one_of(draw, ["approve", "reject"])
            return [signal_wait(name, timeout=_one_of(draw, [None, 5]))]
        case _:
            return [cast(Command, draw(leaves()))]


@st.composite
def batches(draw: st.DrawFn) -> list[Command]:
    """A whole answer."""
    noted = draw(st.lists(st.sampled_from(MARKERS), max_size=2))
    match _one_of(draw, ["step"] * 5 + ["nothing", "end", "end", "continue"]):
        case "step":
            return [*noted, *draw(steps())]
        case "nothing":
            return noted
        case "continue":
            return [*noted, continue_as_new()]
        case _:
            ending = _one_of(draw, [complete_run(), fail_run(), fail_run(non_retryable=True)])
            return [*noted, ending]
