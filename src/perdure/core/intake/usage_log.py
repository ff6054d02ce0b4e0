"""Budgets and token throttles: the usage of a workflow in a window, and when there is room again.

One small log per workflow and scope, a record like those of other gates. Instants are recorded as
the end of their grain, so that usage leaves the window a little late and limits hold.

- A **budget** is checked before every pass. If it is used up, the run is paused; paused runs resume
  in order when enough usage has left the window.
- A **token throttle** is checked before the first pass. The usage of the run is not known then, so
  it is charged with the typical usage of recent runs until it reports its own. Runs that find no
  room wait in order; no later run overtakes them.
"""

from typing import Literal

from msgspec import Struct, structs

from perdure.core import limits
from perdure.core.push.usage import SUM_MAX, amount
from perdure.core.run.push import Meter, Meters

Entry = tuple[int, int, int]
"""An instant, and the tokens and the cost used by then."""
Policy = Literal["budget", "tokenThrottle"]


class UseLog(Struct, frozen=True, kw_only=True):
    """The recent usage of a workflow, oldest first."""

    app: str
    workflow: str
    policy: Policy
    scope: str = ""
    window: int = 0
    entries: tuple[Entry, ...] = ()
    waiting: int = 0
    """How many runs are paused for it, or wait for it."""
    typical: int = 0
    """The typical usage of one recent run."""
    passes: int = 0
    """How many passes it cleared. Every decision changes the record, so that nodes serialise."""


def used(log: UseLog, window: int, now: int) -> tuple[int, int]:
    """The tokens and the cost within the window."""
    counted = [entry for entry in log.entries if entry[0] > now - window]
    return sum(entry[1] for entry in counted), sum(entry[2] for entry in counted)


def charge(log: UseLog, window: int, now: int, *, tokens: int, cost: int) -> UseLog:
    """The log with more usage, and without entries that have left the window."""
    grain = max(1, window // limits.METER_ENTRIES_MAX)
    end = -(-now // grain) * grain
    entries = tuple(entry for entry in log.entries if entry[0] > now - window)
    if entries and entries[-1][0] >= end:
        end, more_tokens, more_cost = entries[-1]
        tokens, cost = min(tokens + more_tokens, SUM_MAX), min(cost + more_cost, SUM_MAX)
        entries = entries[:-1]
    return structs.replace(log, entries=(*entries, (end, tokens, cost)), window=window)


def is_over(meter: Meter, tokens: int, cost: int) -> bool:
    """Whether the usage has reached the limit."""
    over = meter.tokens is not None and tokens >= meter.tokens
    return over or (meter.cost is not None and cost >= meter.cost)


def free_at(log: UseLog, meter: Meter, now: int) -> int | None:
    """When there is room without further usage: now, later, or never (None)."""
    tokens, cost = used(log, meter.window, now)
    if not is_over(meter, tokens, cost):
        return now
    for end, some_tokens, some_cost in log.entries:
        if end > now - meter.window:
            tokens, cost = tokens - some_tokens, cost - some_cost
            if not is_over(meter, tokens, cost):
                return end + meter.window
    return None


def start_paced(log: UseLog, meters: Meters, now: int) -> UseLog:
    """Admit a run, charged with its expected usage."""
    assert meters.pace is not None
    meters.is_paced, meters.estimated = True, max(1, log.typical)
    log = charge(log, meters.pace.window, now, tokens=meters.estimated, cost=0)
    meters.estimated_at = log.entries[-1][0]
    return log


def settle_paced(log: UseLog, meters: Meters, now: int, tokens: int) -> UseLog:
    """Replace part of a run's expected usage by actual usage."""
    assert meters.pace is not None
    log = _refund(log, meters, min(tokens, meters.estimated))
    return charge(log, meters.pace.window, now, tokens=tokens, cost=0) if tokens else log


def end_paced(log: UseLog, meters: Meters, tokens: int) -> UseLog:
    """Refund the unused expectation of an ended run, and update the typical usage."""
    log = _refund(log, meters, meters.estimated)
    typical = tokens if log.typical == 0 else -(-(3 * log.typical + tokens) // 4)
    return structs.replace(log, typical=typical)


def _refund(log: UseLog, meters: Meters, tokens: int) -> UseLog:
    meters.estimated -= tokens
    entries = tuple(
        (end, some - tokens, cost) if end == meters.estimated_at else (end, some, cost)
        for end, some, cost in log.entries
    )
    return structs.replace(log, entries=tuple(e for e in entries if e[1] or e[2]))


def forgotten_at(log: UseLog, window: int, now: int) -> int:
    """When the record may be removed."""
    last = log.entries[-1][0] if log.entries else now
    return max(last, now) + window + limits.METER_KEPT


def in_words(log: UseLog, meter: Meter, now: int) -> str:
    """The usage and its limits, as text."""
    tokens, cost = used(log, meter.window, now)
    parts = []
    if meter.tokens is not None:
        parts.append(f"{tokens} of {meter.tokens} tokens")
    if meter.cost is not None:
        parts.append(f"a cost of {amount(cost):g} of {amount(meter.cost):g}")
    return f"{' and '.join(parts)} in {meter.window // 1_000} ms"


def crosses_warning(log: UseLog, before: UseLog, meter: Meter, now: int) -> bool:
    """Whether the usage has just reached the warning threshold of a budget."""
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
