"""What a workflow may ask of the engine when it registers: triggers, retries and flow control.

Each is a small value that knows its wire form. What is left out is left out on the wire, too.
"""

from dataclasses import dataclass
from typing import Literal

from perdure.sdk.duration import Duration, milliseconds

Wire = dict[str, object]


@dataclass(frozen=True, slots=True)
class Event:
    """Start on an event: its name, or a beginning and `*`; `where` is a CEL filter on `event`."""

    name: str
    where: str | None = None

    def wire(self) -> Wire:
        return {"event": self.name} | _given(**{"if": self.where})


@dataclass(frozen=True, slots=True)
class Cron:
    """Start by the clock: five fields, with `TZ=Europe/Berlin ` in front for another zone."""

    expression: str

    def wire(self) -> Wire:
        return {"cron": self.expression}


Trigger = Event | Cron


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a failing step is tried, the first time included, and how long between."""

    attempts: int
    backoff: Literal["fixed", "linear", "exponential"] | None = None
    delay: Duration | None = None
    delay_max: Duration | None = None

    def __post_init__(self) -> None:
        self.wire()  # a wrong one is refused where it is written

    def wire(self) -> Wire:
        return {"maxAttempts": _positive("attempts", self.attempts)} | _given(
            backoff=self.backoff,
            initialDelayMs=_optional(self.delay),
            maxDelayMs=_optional(self.delay_max),
        )


@dataclass(frozen=True, slots=True)
class Concurrency:
    """At most so many runs in execution at once; `key` is a path into the event's data."""

    limit: int
    key: str | None = None

    def wire(self) -> Wire:
        return {"limit": _positive("limit", self.limit)} | _given(key=self.key)


@dataclass(frozen=True, slots=True)
class Throttle:
    """Starts are spaced to this rate; what comes faster waits."""

    limit: int
    per: Duration
    key: str | None = None

    def wire(self) -> Wire:
        return _rate(self.limit, self.per, self.key)


@dataclass(frozen=True, slots=True)
class RateLimit:
    """Starts beyond this rate are dropped."""

    limit: int
    per: Duration
    key: str | None = None

    def wire(self) -> Wire:
        return _rate(self.limit, self.per, self.key)


@dataclass(frozen=True, slots=True)
class Debounce:
    """One run with the last event, after so long without another."""

    period: Duration
    key: str | None = None

    def wire(self) -> Wire:
        return {"periodMs": _length("period", self.period)} | _given(key=self.key)


@dataclass(frozen=True, slots=True)
class Batch:
    """One run for many events: `ctx.events` has them all."""

    size_max: int
    timeout: Duration
    key: str | None = None

    def wire(self) -> Wire:
        size, timeout = _positive("size_max", self.size_max), _length("timeout", self.timeout)
        return {"maxSize": size, "timeoutMs": timeout} | _given(key=self.key)


@dataclass(frozen=True, slots=True)
class Priority:
    """Stand in line as if come so many milliseconds earlier; a negative number steps back."""

    shift_ms: int

    def wire(self) -> Wire:
        return {"shiftMs": self.shift_ms}


@dataclass(frozen=True, slots=True)
class Singleton:
    """One live run per key: a second is skipped, or it cancels the first."""

    key: str | None = None
    mode: Literal["skip", "cancel"] | None = None

    def wire(self) -> Wire:
        return _given(key=self.key, mode=self.mode)


@dataclass(frozen=True, slots=True)
class Idempotency:
    """One run per key within the period, however often it is triggered."""

    key: str | None = None
    period: Duration | None = None

    def wire(self) -> Wire:
        return _given(key=self.key, periodMs=_optional(self.period))


@dataclass(frozen=True, slots=True)
class Cap:
    """The most that the model calls of one run may cost."""

    cost_max: float | None = None
    tokens_max: int | None = None

    def wire(self) -> Wire:
        return _given(maxCost=self.cost_max, maxTokens=self.tokens_max)


@dataclass(frozen=True, slots=True)
class Budget:
    """What the model calls of all runs may use up in a window; over it runs are paused."""

    window: Duration
    cost_max: float | None = None
    tokens_max: int | None = None
    warn_at_percent: float | None = None

    def wire(self) -> Wire:
        return {"windowMs": _length("window", self.window)} | _given(
            maxCost=self.cost_max, maxTokens=self.tokens_max, warnAtPct=self.warn_at_percent
        )


@dataclass(frozen=True, slots=True)
class TokenThrottle:
    """Runs start only as fast as their model calls use up tokens; what comes faster waits."""

    tokens: int
    per: Duration
    key: str | None = None

    def wire(self) -> Wire:
        rate = {"tokens": _positive("tokens", self.tokens), "perMs": _length("per", self.per)}
        return rate | _given(key=self.key)


def _rate(limit: int, per: Duration, key: str | None) -> Wire:
    rate = {"limit": _positive("limit", limit), "perMs": _length("per", per)}
    return rate | _given(key=key)


def _given(**fields: object) -> Wire:
    return {name: value for name, value in fields.items() if value is not None}


def _optional(duration: Duration | None) -> int | None:
    return None if duration is None else milliseconds(duration)


def _length(name: str, duration: Duration) -> int:
    return _positive(name, milliseconds(duration))


def _positive(name: str, number: int) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ValueError(f"{name} must be a positive whole number, not {number!r}")
    return number
