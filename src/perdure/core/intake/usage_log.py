"""Budgets and token throttles: what a workflow used up in a window, and when there is room again.

One small log per workflow and scope, a record like those of other gates. Moments are written as
the end of their grain, so that what was used leaves the window a little late and limits hold.

- A **budget** is asked before every pass. Where it is used up the run is paused; whoever is paused
  goes on when enough has left the window, in order.
- A **token throttle** is asked before the first pass. What a run will use is not known then, so it
  is charged with what runs used lately, until it tells. Who finds no room waits in line, and
  nobody passes those who wait.
"""

from typing import Literal

from msgspec import Struct, structs

from perdure.core import limits
from perdure.core.push.usage import SUM_MAX, amount
from perdure.core.run.push import Meter, Meters

Entry = tuple[int, int, int]
"""A moment, and the tokens and the money that were used by then."""
Policy = Literal["budget", "tokenThrottle"]


class UseLog(Struct, frozen=True, kw_only=True):
    """What was used lately, oldest first."""

    app: str
    workflow: str
    policy: Policy
    scope: str = ""
    window: int = 0
    entries: tuple[Entry, ...] = ()
    waiting: int = 0
    """How many runs are paused for it, or wait in its line."""
    typical: int = 0
    """What runs used of late, each."""
    passes: int = 0
    """How many passes it let go. Every answer is a change, so that nodes decide one by one."""


def used(log: UseLog, window: int, now: int) -> tuple[int, int]:
    """Tokens and money that count now."""
    counted = [entry for entry in log.entries if entry[0] > now - window]
    return sum(entry[1] for entry in counted), sum(entry[2] for entry in counted)


def charge(log: UseLog, window: int, now: int, *, tokens: int, cost: int) -> UseLog:
    """The log with something more, and without what counts no more."""
    grain = max(1, window // limits.METER_ENTRIES_MAX)
    ctx = -(-now // grain) * grain
    entries = tuple(entry for entry in log.entries if entry[0] > now - window)
    if entries and entries[-1][0] >= ctx:
        ctx, more_tokens, more_cost = entries[-1]
        tokens, cost = min(tokens + more_tokens, SUM_MAX), min(cost + more_cost, SUM_MAX)
        entries = entries[:-1]
    return structs.replace(log, entries=(*entries, (ctx, tokens, cost)), window=window)


def is_over(meter: Meter, tokens: int, cost: int) -> bool:
    """Whether what was used is all that may be."""
    over = meter.tokens is not None and tokens >= meter.tokens
    return over or (meter.cost is not None and cost >= meter.cost)


def free_at(log: UseLog, meter: Meter, now: int) -> int | None:
    """When there is room, if nothing more is used: now, later, or never."""
    tokens, cost = used(log, meter.window, now)
    if not is_over(meter, tokens, cost):
        return now
    for ctx, some_tokens, some_cost in log.entries:
        if ctx > now - meter.window:
            tokens, cost = tokens - some_tokens, cost - some_cost
            if not is_over(meter, tokens, cost):
                return ctx + meter.window
    return None


def start_paced(log: UseLog, meters: Meters, now: int) -> UseLog:
    """Let a run start: it is charged with what it will most likely use."""
    assert meters.pace is not None
    meters.is_paced, meters.estimated = True, max(1, log.typical)
    log = charge(log, meters.pace.window, now, tokens=meters.estimated, cost=0)
    meters.estimated_at = log.entries[-1][0]
    return log


def settle_paced(log: UseLog, meters: Meters, now: int, tokens: int) -> UseLog:
    """A run used something: that takes the place of what it was charged with beforehand."""
    assert meters.pace is not None
    log = _refund(log, meters, min(tokens, meters.estimated))
    return charge(log, meters.pace.window, now, tokens=tokens, cost=0) if tokens else log


def end_paced(log: UseLog, meters: Meters, tokens: int) -> UseLog:
    """A run has ended: it used so much, and will use no more."""
    log = _refund(log, meters, meters.estimated)
    typical = tokens if log.typical == 0 else -(-(3 * log.typical + tokens) // 4)
    return structs.replace(log, typical=typical)


def _refund(log: UseLog, meters: Meters, tokens: int) -> UseLog:
    meters.estimated -= tokens
    entries = tuple(
        (ctx, some - tokens, cost) if ctx == meters.estimated_at else (ctx, some, cost)
        for ctx, some, cost in log.entries
    )
    return structs.replace(log, entries=tuple(e for e in entries if e[1] or e[2]))


def forgotten_at(log: UseLog, window: int, now: int) -> int:
    """When nobody needs to know any more."""
    last = log.entries[-1][0] if log.entries else now
    return max(last, now) + window + limits.METER_KEPT


def in_words(log: UseLog, meter: Meter, now: int) -> str:
    """What is used of what may be."""
    tokens, cost = used(log, meter.window, now)
    told = []
    if meter.tokens is not None:
        told.append(f"{tokens} of {meter.tokens} tokens")
    if meter.cost is not None:
        told.append(f"a cost of {amount(cost):g} of {amount(meter.cost):g}")
    return f"{' and '.join(told)} in {meter.window // 1_000} ms"


def crosses_warning(log: UseLog, before: UseLog, meter: Meter, now: int) -> bool:
    """Whether so much of a budget is used for the first time that people want to know."""
    if meter.warn_at is None:
        return False

    def reached(one: UseLog) -> bool:
        tokens, cost = used(one, meter.window, now)
        assert meter.warn_at is not None
        return any(
            most is not None and 100 * some >= meter.warn_at * most
            for some, most in ((tokens, meter.tokens), (cost, meter.cost))
        )

    return reached(log) and not reached(before)
