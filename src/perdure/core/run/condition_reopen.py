"""Reopened conditions: new openings that the server records so that replay finds a message there.

A worker that replays a history delivers a message to the last condition that was opened before it,
unless an event of another operation is between the two, such as a loser of a selection that was
left running. It would then apply the message much earlier, and the code would take another path.
"""

from perdure.core import instant
from perdure.core.limits import SUPERSEDED_WAITS_TOLD_MAX
from perdure.core.run.context import Context
from perdure.core.run.history import record, with_metadata
from perdure.core.run.operation import ConditionWait
from perdure.core.run.state import Run
from perdure.core.run.wait_events import messages_taken, opening, timeout_timer


def open_condition(run: Run) -> ConditionWait | None:
    """The condition that the code waits for."""
    wait = None if run.wait is None else run.operations.get(run.wait)
    return wait if isinstance(wait, ConditionWait) else None


def mark_overtaken(run: Run) -> None:
    """Note at an open condition that an event of another operation follows its opening."""
    wait = open_condition(run)
    if wait is not None and not wait.overtaken:
        wait.overtaken = True
        run.unsaved.operations.add(wait.sequence)


def reopen_before_message(run: Run, ctx: Context) -> None:
    """Prepare the open condition for a message that is recorded next."""
    wait = open_condition(run)
    if wait is None:
        return
    run.unsaved.operations.add(wait.sequence)
    if wait.overtaken and (wait.key or wait.fingerprint):
        first = run.reopened_from or wait.sequence
        if wait.keeps_number:
            run.repeats += 1
            _open_again(run, ctx, wait)
        else:
            reopen_with_new_sequence(run, ctx, wait)
        run.reopened_from = first
    wait.quiet = False
    wait.messages += 1


def bind_messages(run: Run, ctx: Context, wait: ConditionWait) -> None:
    """Before the condition is opened again: bind the messages so far to its present opening."""
    if wait.messages > 1:
        record(run, ctx, "TimerCancelled", messages_taken(wait, instant.text(ctx.now)))


def record_superseded_waits(run: Run, ctx: Context, last: int) -> None:
    """Record the end of the earlier openings of a condition, up to `last`.

    Reopening records no end for them. A worker whose code is asked to cancel itself delivers the
    request at the first call without an end.
    """
    if run.reopened_from is None:
        return
    for sequence in range(max(run.reopened_from, last - SUPERSEDED_WAITS_TOLD_MAX), last + 1):
        members = {
            "sequence": sequence,
            "timer_kind": "condition_timeout",
            "cancelled_at": instant.text(ctx.now),
        }
        record(run, ctx, "TimerCancelled", members)
    run.reopened_from = None


def reopen_with_new_sequence(run: Run, ctx: Context, wait: ConditionWait) -> None:
    """Open it again under the next number. Its time-out keeps running."""
    run.operations.pop(wait.sequence)
    run.unsaved.operations.add(wait.sequence)
    wait.sequence = run.wait = run.next_sequence
    run.next_sequence += 1
    run.repeats = 0
    run.operations[wait.sequence] = wait
    run.unsaved.operations.add(wait.sequence)
    _open_again(run, ctx, wait)


def _open_again(run: Run, ctx: Context, wait: ConditionWait) -> None:
    bind_messages(run, ctx, wait)
    wait.wait_id = ctx.ids.ulid().upper()
    wait.overtaken = False
    wait.messages = 0
    record(run, ctx, "ConditionWaitOpened", opening(wait))
    if wait.timer_id is not None:
        wait.timer_id = ctx.ids.ulid()
        record(run, ctx, "TimerScheduled", with_metadata(timeout_timer(wait), wait))
