"""Opening a condition again from here, so that a message stands behind the opening that it is for.

A worker that replays a history gives a message to the condition that was opened last before it,
unless something of another operation stands between the two: a loser of a selection that was left
running, say. It then applies the message much earlier, and the code goes another way than it went.
"""

from perdure.core import instant
from perdure.core.limits import SUPERSEDED_WAITS_TOLD_MAX
from perdure.core.run.context import Context
from perdure.core.run.history import record, with_metadata
from perdure.core.run.operation import ConditionWait
from perdure.core.run.state import Run
from perdure.core.run.wait_events import messages_taken, opening, timeout_timer


def open_condition(run: Run) -> ConditionWait | None:
    """The condition that the code stands at."""
    wait = None if run.wait is None else run.operations.get(run.wait)
    return wait if isinstance(wait, ConditionWait) else None


def mark_overtaken(run: Run) -> None:
    """Something of an operation enters history, and the code may stand at a condition."""
    wait = open_condition(run)
    if wait is not None and not wait.overtaken:
        wait.overtaken = True
        run.unsaved.operations.add(wait.sequence)


def reopen_before_message(run: Run, ctx: Context) -> None:
    """A message for the code enters history next."""
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
    """The same will be asked again: what stands behind this opening is for this one."""
    if wait.messages > 1:
        record(run, ctx, "TimerCancelled", messages_taken(wait, instant.text(ctx.now)))


def tell_superseded(run: Run, ctx: Context, last: int) -> None:
    """Say of the earlier openings of a condition, up to `last`, that they are over.

    A condition that is opened again leaves them without an end. A worker whose code is asked to
    cancel itself looks for the first call that has none.
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
    """Open it again under the next number. Its time-out goes on."""
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
