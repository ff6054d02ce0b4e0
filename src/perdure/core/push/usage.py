"""Usage of model calls: exact sums of tokens and costs.

Money is an integer of billionths, so that sums do not depend on their order. The engine knows no
prices: a cost is what a runner or a provider reported, and may be missing.
"""

from msgspec import Struct

from perdure.core.run.context import Context
from perdure.core.run.push import Push, Spent
from perdure.core.run.state import Run

BILLION = 1_000_000_000
SUM_MAX = 2**62
"""Sums saturate here: they must fit into a database column."""


class Usage(Struct, frozen=True, kw_only=True):
    """The usage of one model call, as far as it was reported."""

    model: str | None = None
    tokens: int = 0
    cost: int | None = None
    latency_ms: int | None = None
    cached_tokens: int | None = None
    """How many tokens came from the provider's prompt cache, if it has one."""


class Metered(Struct, frozen=True):
    """A model call was charged to a run. `is_first` if it is the first of the run."""

    run: Run
    usage: Usage
    at: int
    is_first: bool


def billionths(amount: float) -> int:
    """An amount of money in billionths."""
    return min(round(amount * BILLION), SUM_MAX)


def amount(cost: int) -> float:
    """A cost as a decimal amount, as on the wire."""
    return cost / BILLION


def add_cost(first: int | None, second: int | None) -> int | None:
    """A sum of costs; an unknown cost adds nothing."""
    if first is None or second is None:
        return second if first is None else first
    return min(first + second, SUM_MAX)


def meter(run: Run, ctx: Context, usage: Usage) -> None:
    """Charge a run with a model call."""
    push = run.push
    assert push is not None
    spent = push.spent or Spent()
    push.spent = Spent(
        calls=spent.calls + 1,
        tokens=min(spent.tokens + usage.tokens, SUM_MAX),
        cost=add_cost(spent.cost, usage.cost),
    )
    run.unsaved.effects.append(Metered(run, usage, ctx.now, is_first=not spent.calls))


def exhausted_cap(push: Push) -> str | None:
    """Which cap of a run is exhausted, as text; None if none is."""
    cap, spent = push.cap, push.spent or Spent()
    if cap is None:
        return None
    if cap.cost is not None and (spent.cost or 0) >= cap.cost:
        return f"cost {amount(spent.cost or 0):g} of {amount(cap.cost):g}"
    if cap.tokens is not None and spent.tokens >= cap.tokens:
        return f"{spent.tokens} tokens of {cap.tokens}"
    return None
