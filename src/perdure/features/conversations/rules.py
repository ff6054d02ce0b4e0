"""Conversations: the runs of one app that share a label, which the wire calls a session."""

from collections.abc import Iterable

from msgspec import Struct, structs

from perdure.core.push.step import push_of
from perdure.core.push.usage import SUM_MAX, add_cost
from perdure.core.run.push import Spent
from perdure.core.run.state import Run


class Conversation(Struct, frozen=True, kw_only=True):
    """What is known without reading its runs. `ended` counts the closed runs by status."""

    session: str
    app: str
    first_started_at: int
    last_started_at: int
    runs: int = 0
    ended: dict[str, int] = {}
    spent: Spent | None = None
    """What the closed runs have used."""


def joined(before: Conversation | None, run: Run) -> Conversation:
    """The conversation with one more open run."""
    if before is None:
        at = run.started_at
        session = push_of(run).session or ""
        before = Conversation(
            session=session, app=run.queue, first_started_at=at, last_started_at=at
        )
    # Clocks of nodes differ a little.
    return structs.replace(
        before,
        first_started_at=min(before.first_started_at, run.started_at),
        last_started_at=max(before.last_started_at, run.started_at),
        runs=before.runs + 1,
    )


def left(before: Conversation, run: Run) -> Conversation:
    """The conversation after one of its runs has closed."""
    status = run.status.value
    return structs.replace(
        before,
        ended={**before.ended, status: before.ended.get(status, 0) + 1},
        spent=sum_spent([before.spent, push_of(run).spent]),
    )


def without(before: Conversation, run: Run) -> Conversation | None:
    """The conversation without a removed run; None if it was the last. Its usage stays counted."""
    status = run.status.value
    if not before.ended.get(status):
        # The run began before conversations were stored.
        return before
    if before.runs == 1:
        return None
    ended = {**before.ended, status: before.ended[status] - 1}
    return structs.replace(
        before, runs=before.runs - 1, ended={name: n for name, n in ended.items() if n}
    )


def merged(parts: Iterable[Conversation]) -> Conversation:
    """The parts of a conversation that several apps share, merged into one."""
    first, *others = parts
    for other in others:
        ended = dict(first.ended)
        for status, count in other.ended.items():
            ended[status] = ended.get(status, 0) + count
        first = structs.replace(
            first,
            first_started_at=min(first.first_started_at, other.first_started_at),
            last_started_at=max(first.last_started_at, other.last_started_at),
            runs=first.runs + other.runs,
            ended=ended,
            spent=sum_spent([first.spent, other.spent]),
        )
    return first


def sum_spent(parts: Iterable[Spent | None]) -> Spent | None:
    """The sum of several usages; none if there are none."""
    total: Spent | None = None
    for part in parts:
        if part is None or total is None:
            total = total if part is None else part
            continue
        total = Spent(
            calls=total.calls + part.calls,
            tokens=min(total.tokens + part.tokens, SUM_MAX),
            cost=add_cost(total.cost, part.cost),
        )
    return total
