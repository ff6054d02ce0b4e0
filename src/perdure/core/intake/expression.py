"""Conditions on events, in the Common Expression Language (CEL). Only this module uses the library.

`compile_filter` refuses expressions that do not parse, that name anything but `event` (and
`trigger`, for the filter of a wait), or whose result is not a boolean. Evaluating a filter on an
event gives true, false, or a failure with its reason; a failure counts as false everywhere and is
recorded. JSON numbers compare and add up as numbers, whether they are whole or not.

Evaluation is bounded. The library bounds nesting (32) and the iterations of `all`, `exists`, `map`
and `filter` (10,000), and its regular expressions take linear time. It does not bound the cost of
one iteration or one function. So `expression_cost.py` computes an upper bound, and an expression is
evaluated only on data where it stays below `EXPRESSION_WORK_MAX`. Expressions without a bound are
refused.
"""

import re
from collections.abc import Callable, Collection
from functools import lru_cache
from typing import Any, NamedTuple

import cel_expr_python.cel as cel
import msgspec
from msgspec import UNSET

from perdure.core import limits
from perdure.core.intake.expression_arithmetic import mix_numbers
from perdure.core.intake.expression_cost import Polynomial, Unknown, cost_of
from perdure.core.intake.expression_tree import Path, paths_of, read_tree, write_tree

_environment = cel.NewEnv(variables={"event": cel.Type.DYN})
_wait_environment = cel.NewEnv(variables={"event": cel.Type.DYN, "trigger": cel.Type.DYN})
_ROOTS = frozenset({"event", "trigger"})
_decoder = msgspec.json.Decoder()
_INT_MIN, _INT_MAX = -(1 << 63), (1 << 63) - 1

# The checker has no operators on an int and a double. The evaluator has the comparisons, and
# `mix_numbers` adds the arithmetic.
_NUMBERS = r"(?:int|uint|double)"
_MIXED = re.compile(
    r"found no matching overload for '_(?:==|!=|<=?|>=?|[-+*/])_' applied to "
    rf"'\({_NUMBERS}, {_NUMBERS}\)'"
)
_CONVERSION = 300
"""The cost of converting one Python item for the library, in about nanoseconds."""
_LONG_NUMBER = re.compile(rb"[0-9]{19}")


class Verdict(NamedTuple):
    """The result of a condition on an event."""

    holds: bool
    failure: str = ""
    """Why the condition could not be evaluated, if so. It then counts as false."""


class Event:
    """An incoming event for conditions. Its data is decoded once, and only if needed.

    All conditions on an event share its activation, which is expensive to build, and one bound on
    the work of those that cost more than `EXPRESSION_TRIFLE`.
    """

    __slots__ = (
        "_activation",
        "_seen",
        "_sizes",
        "_used",
        "_value",
        "_verdicts",
        "_work",
        "data",
        "name",
    )

    def __init__(self, name: str, data: bytes) -> None:
        self.name = name
        self.data = data
        """JSON; empty for null."""
        self._value: object = UNSET
        self._activation: cel.Activation | None = None
        self._seen: dict[str, object] | None = None
        self._sizes: dict[Path, Size] = {}
        self._verdicts: dict[str, Verdict] = {}
        self._work = self._used = 0.0

    @property
    def value(self) -> object:
        """The decoded data. Raises `msgspec.DecodeError` for bytes that are not JSON."""
        if self._value is UNSET:
            self._value = _decoder.decode(self.data) if self.data else None
        return self._value

    @property
    def members(self) -> dict[str, object]:
        """The members that conditions can read."""
        if self._seen is None:
            data = _fitting(self.value) if _LONG_NUMBER.search(self.data) else self.value
            self._seen = {"name": self.name, "data": data}
        return self._seen

    @property
    def activation(self) -> cel.Activation:
        """The library's form of the event, on which it evaluates."""
        if self._activation is None:
            self._activation = _environment.Activation({"event": self.members})
        return self._activation

    def judge(self, condition: "Filter", trigger: "Event | None" = None) -> Verdict:
        """The verdict of a condition, cached. A filter may also read the run's `trigger` event."""
        if condition.needs_trigger:
            if trigger is None:
                return Verdict(False, "no event has started the run")
            return self._judge(condition, trigger)
        verdict = self._verdicts.get(condition.source)
        if verdict is None:
            verdict = self._judge(condition, None)
            if len(self._verdicts) < limits.EXPRESSIONS_COMPILED_MAX:
                self._verdicts[condition.source] = verdict
        return verdict

    def _judge(self, condition: "Filter", trigger: "Event | None") -> Verdict:
        try:
            work = condition.work(self, trigger)
            if work > limits.EXPRESSION_WORK_MAX:
                return Verdict(False, "costs too much on data of this size")
            if work > limits.EXPRESSION_TRIFLE and not self._charge(work):
                return Verdict(False, "costs too much beside the other conditions on this event")
            self._renew(work)
            result = condition.evaluate(self, trigger)
        except msgspec.DecodeError:
            return Verdict(False, "the data of the event is not valid JSON")
        except (RuntimeError, ValueError, RecursionError) as error:
            return Verdict(False, _reason(error))
        if not isinstance(result, bool):
            return Verdict(False, f"returned {type(result).__name__}, not bool")
        return Verdict(result)

    def _charge(self, work: float) -> bool:
        """Whether the conditions on this event may cost this much more."""
        if self._work + work > limits.EVENT_EXPRESSIONS_WORK_MAX:
            return False
        self._work += work
        return True

    @property
    def has_room(self) -> bool:
        """Whether any allowed condition may still be evaluated, whatever its cost."""
        return self._work + limits.EXPRESSION_WORK_MAX <= limits.EVENT_EXPRESSIONS_WORK_MAX

    def _renew(self, work: float) -> None:
        """Drop the activation after much work: the library frees its values only with it."""
        self._used += work
        if self._used > limits.EXPRESSION_WORK_MAX:
            self._used, self._activation = work, None

    def whole(self) -> "Size":
        """An upper bound on the size of each part of the event."""
        return self._sized((), lambda: _size_of_json(self.data, len(self.name) * 4 + 32))

    def size(self, path: "Path") -> "Size":
        """The size of one part of the event."""
        return self._sized(path, lambda: self._measured(path))

    def _sized(self, path: "Path", measure: Callable[[], "Size"]) -> "Size":
        found = self._sizes.get(path)
        if found is None:
            found = measure()
            if len(self._sizes) < limits.EXPRESSION_PATHS_MAX:
                self._sizes[path] = found
        return found

    def _measured(self, path: "Path") -> "Size":
        if path[1:] == ("name",):
            return Size(len(self.name) * 4, 0)
        if len(path) <= 2 or len(self._sizes) >= limits.EXPRESSION_PATHS_MAX:
            return self.whole()
        value = self.value
        for member in path[2:]:
            value = value.get(member) if isinstance(value, dict) else None
        if isinstance(value, str):
            return Size(len(value) if value.isascii() else len(value) * 4, 0)
        if not isinstance(value, dict | list):
            return Size(32, 0)
        try:
            return _size_of_json(msgspec.json.encode(value), 32)
        except (ValueError, OverflowError, RecursionError):
            return self.whole()


class Size(NamedTuple):
    """The size of some data: its bytes, and the items of all its lists and maps together."""

    bytes: int
    items: int


def _size_of_json(data: bytes, more: int) -> Size:
    items = data.count(b",") + data.count(b"[") + data.count(b"{") + 2
    return Size(len(data) + more, items)


class Filter:
    """A compiled condition."""

    __slots__ = ("_cost", "_expression", "_paths", "needs_trigger", "source")

    def __init__(
        self, source: str, expression: cel.Expression, cost: Polynomial, paths: frozenset[Path]
    ) -> None:
        self.source = source
        self._expression = expression
        self._cost = cost
        self._paths = paths
        self.needs_trigger = any(path[0] == "trigger" for path in paths)
        """Whether it reads the event that started the waiting run."""

    def holds(self, event: Event, trigger: Event | None = None) -> bool | None:
        """Whether it is true for an event; None if it cannot be evaluated."""
        verdict = event.judge(self, trigger)
        return None if verdict.failure else verdict.holds

    def work(self, event: Event, trigger: Event | None) -> float:
        """The highest cost of evaluating it on an event, in about nanoseconds."""
        roots = {"event": event, "trigger": event if trigger is None else trigger}
        if trigger is None:
            whole = event.whole()
            work = self._cost.evaluate(lambda one: getattr(whole, one[0]))
            if work <= limits.EXPRESSION_TRIFLE:
                return work

        def size(one: Unknown) -> float:
            kind, path = one
            return float(getattr(roots[path[0]].size(path), kind))

        work = self._cost.evaluate(size)
        if trigger is None:
            return work
        # The trigger differs per run, so its parts are converted for the library every time.
        made = [roots[path[0]].size(path) for path in self._paths]
        return work + sum(one.bytes + _CONVERSION * one.items for one in made)

    def evaluate(self, event: Event, trigger: Event | None) -> object:
        """Its value. Raises RuntimeError if evaluation fails."""
        value = self._expression.eval(self._activation(event, trigger))
        if value.type() == cel.Type.ERROR:
            raise RuntimeError(value.value())
        return value.value()

    def _activation(self, event: Event, trigger: Event | None) -> cel.Activation:
        if trigger is None:
            return event.activation
        whole = {"event": event.members, "trigger": trigger.members}
        return _wait_environment.Activation(_pruned(whole, self._paths))


def judge(source: str, event: Event) -> Verdict:
    """The verdict of a trigger's stored condition on an event.

    A condition that an earlier version accepted and this one refuses counts as failed.
    """
    try:
        return event.judge(compile_filter(source))
    except ValueError as error:
        return Verdict(False, _reason(error))


def judge_wait(source: str, event: Event, trigger: Callable[[], Event]) -> Verdict:
    """The same for the filter of a wait, with the event that started the waiting run."""
    try:
        condition = compile_filter(source, of_wait=True)
        return event.judge(condition, trigger() if condition.needs_trigger else None)
    except ValueError as error:
        return Verdict(False, _reason(error))


@lru_cache(maxsize=limits.EXPRESSIONS_COMPILED_MAX)
def compile_filter(source: str, *, of_wait: bool = False) -> Filter:
    """The condition of a text. Raises ValueError, with the position, if it is not valid.

    The filter of a wait may also read `trigger`, the event that started the waiting run.
    """
    if len(source) > limits.EXPRESSION_LENGTH_MAX:
        raise ValueError(f"must have at most {limits.EXPRESSION_LENGTH_MAX} characters")
    environment = _wait_environment if of_wait else _environment
    try:
        expression = environment.compile(source)
    except RuntimeError as error:
        if not _only_mixes_numbers(str(error)):
            raise ValueError(_why(str(error))) from None
        expression = environment.compile(source, disable_check=True)
    if expression.return_type() not in (cel.Type.BOOL, cel.Type.DYN):
        raise ValueError(f"must be true or false, not {expression.return_type().name().lower()}")
    tree = read_tree(expression.serialize())
    mixed = mix_numbers(tree)
    if mixed != tree:
        expression = environment.deserialize(write_tree(mixed))
    return Filter(source, expression, cost_of(mixed, _ROOTS), paths_of(mixed, _ROOTS))


def _only_mixes_numbers(message: str) -> bool:
    return message.count("ERROR: ") == len(_MIXED.findall(message)) > 0


def _why(message: str) -> str:
    """The library's first error, with line and column."""
    found = re.search(r"ERROR: <input>:(-?\d+:-?\d+): ([^\n]*)", message)
    if found is None:
        return f"cannot be compiled: {message.splitlines()[0].split(': ', 1)[-1]}"
    return f"cannot be compiled, at {found[1]}: {found[2]}"


def _reason(error: Exception) -> str:
    """The reason of an evaluation error, in one line short enough to be stored."""
    return " ".join(str(error).split())[: limits.EXPRESSION_FAILURE_LENGTH_MAX] or "failed"


def _pruned(value: object, paths: Collection[Path]) -> Any:
    """The value without members that no path reads."""
    if not isinstance(value, dict) or () in paths:
        return value
    stream_readers: dict[str, list[Path]] = {}
    for head, *tail in paths:
        stream_readers.setdefault(head, []).append(tuple(tail))
    return {
        head: _pruned(value[head], rest) for head, rest in stream_readers.items() if head in value
    }


def _fitting(value: object) -> object:
    """The value with integers beyond 64 bits, for which CEL has no type, turned into doubles."""
    if isinstance(value, dict):
        return {key: _fitting(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_fitting(one) for one in value]
    if isinstance(value, int) and not _INT_MIN <= value <= _INT_MAX:
        return float(value)
    return value
