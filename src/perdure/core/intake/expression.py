"""Conditions on events, in the Common Expression Language. The one module that knows the library.

`compile_filter` refuses what does not parse, names anything but `event` (and `trigger`, for the
filter of a wait), or can never be true or false. A filter then says of an event: it holds, it does
not, or (`None`) it could not be said, which counts as no everywhere and is worth counting. Numbers
of JSON compare as numbers, whether they are whole or not.

Evaluation is bounded. The library bounds nesting (32) and the turns of `all`, `exists`, `map` and
`filter` (10,000), and its regular expressions take linear time. It does not bound what one turn
costs, so we do: an expression is only evaluated where the bytes that it may touch, turns times data
at worst, stay within `EXPRESSION_WORK_BYTES_MAX`. Looking at each item once always does.
"""

import re
from functools import lru_cache
from typing import NamedTuple

import cel_expr_python.cel as cel
import msgspec
from msgspec import UNSET

from perdure.core import limits

_environment = cel.NewEnv(variables={"event": cel.Type.DYN})
_wait_environment = cel.NewEnv(variables={"event": cel.Type.DYN, "trigger": cel.Type.DYN})
_decoder = msgspec.json.Decoder()
_INT_MIN, _INT_MAX = -(1 << 63), (1 << 63) - 1

# The checker knows no comparison of an int with a double, the evaluator does.
_NUMBERS = r"(?:int|uint|double)"
_MIXED = re.compile(
    rf"found no matching overload for '_(?:==|!=|<=?|>=?)_' applied to '\({_NUMBERS}, {_NUMBERS}\)'"
)
_TOKEN = re.compile(
    r"""(?P<text>[rRbB]*(?:"{3}.*?"{3}|'{3}.*?'{3}|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'))"""
    r"""|//[^\n]*|(?P<name>[A-Za-z_]\w*)(?P<called>\s*(?=\())?|(?P<mark>[.,(){}\[\]+])|\s+|.""",
    re.DOTALL,
)
_TRIGGER = re.compile(r"\btrigger\b")
_LONG_NUMBER = re.compile(rb"[0-9]{19}")
_TURNS_MAX = 10_000
"""Where the library itself stops."""
_BUILDERS = frozenset({"map", "filter"})
_MACROS = _BUILDERS | {"all", "exists", "exists_one"}


class Event:
    """An incoming event as conditions see it. Its data is decoded once, and only if asked for."""

    __slots__ = ("_activation", "_value", "data", "name")

    def __init__(self, name: str, data: bytes) -> None:
        self.name = name
        self.data = data
        """JSON, or nothing for null."""
        self._value: object = UNSET
        self._activation: cel.Activation | None = None

    @property
    def value(self) -> object:
        """The decoded data. Raises what msgspec raises for bytes that are no JSON."""
        if self._value is UNSET:
            self._value = _decoder.decode(self.data) if self.data else None
        return self._value

    @property
    def activation(self) -> cel.Activation:
        """What the library evaluates on; shared by all conditions, as making it is the cost."""
        if self._activation is None:
            self._activation = _environment.Activation({"event": self._members})
        return self._activation

    def activation_for(self, trigger: "Event") -> cel.Activation:
        """The same for a run that another event started."""
        members = {"event": self._members, "trigger": trigger._members}
        return _wait_environment.Activation(members)

    @property
    def _members(self) -> dict[str, object]:
        data = _fitting(self.value) if _LONG_NUMBER.search(self.data) else self.value
        return {"name": self.name, "data": data}


class Shape(NamedTuple):
    """What of an expression decides how much work it can make."""

    joined: int
    """How many plus signs there are."""
    depth: int
    """How deep macros stand in macros."""
    roams: bool
    """Whether a turn of a macro looks at more than its own item."""
    builds: bool
    """Whether lists are made."""


class Filter:
    """A compiled condition."""

    __slots__ = ("_expression", "_shape", "needs_trigger", "source")

    def __init__(self, source: str, expression: cel.Expression, *, needs_trigger: bool) -> None:
        self.source = source
        self.needs_trigger = needs_trigger
        """Whether it reads the event that started the waiting run."""
        self._expression = expression
        self._shape = _shape_of(source)

    def holds(self, event: Event, trigger: Event | None = None) -> bool | None:
        """Whether it is true of an event; none when that cannot be said."""
        if not self.needs_trigger:
            trigger = None
        elif trigger is None:
            return None
        try:
            if self._work(event, trigger) > limits.EXPRESSION_WORK_BYTES_MAX:
                return None
            activation = event.activation if trigger is None else event.activation_for(trigger)
            result = self._expression.eval(activation).value()
        except (RuntimeError, ValueError, RecursionError, msgspec.DecodeError):
            return None
        return result if isinstance(result, bool) else None

    def _work(self, event: Event, trigger: Event | None) -> int:
        """About how many bytes are touched."""
        shape = self._shape
        size = len(event.data) + (0 if trigger is None else len(trigger.data))
        # Joined texts are copied once per plus, each longer than the last.
        work = size * (1 + shape.joined * shape.joined)
        if not shape.roams and not shape.builds:
            return work
        longest = max(_longest(event.value), 1 if trigger is None else _longest(trigger.value))
        turns = min(int(longest**shape.depth), _TURNS_MAX)
        # The library copies the list that it builds at every turn.
        return (work * turns if shape.roams else work) + (turns * longest * 8 * shape.builds)


@lru_cache(maxsize=limits.EXPRESSIONS_COMPILED_MAX)
def compile_filter(source: str, *, of_wait: bool = False) -> Filter:
    """The condition of a text. Raises ValueError, with the place, for one that makes no sense.

    The filter of a wait may also read `trigger`, the event that started the waiting run.
    """
    if len(source) > limits.EXPRESSION_LENGTH_MAX:
        raise ValueError(f"must have at most {limits.EXPRESSION_LENGTH_MAX} characters")
    environment = _wait_environment if of_wait else _environment
    needs_trigger = of_wait and _TRIGGER.search(source) is not None
    try:
        expression = environment.compile(source)
    except RuntimeError as error:
        if not _only_mixes_numbers(str(error)):
            raise ValueError(_why(str(error))) from None
        unchecked = environment.compile(source, disable_check=True)
        return Filter(source, unchecked, needs_trigger=needs_trigger)
    if expression.return_type() not in (cel.Type.BOOL, cel.Type.DYN):
        raise ValueError(f"must be true or false, not {expression.return_type().name().lower()}")
    return Filter(source, expression, needs_trigger=needs_trigger)


def _only_mixes_numbers(message: str) -> bool:
    return message.count("ERROR: ") == len(_MIXED.findall(message)) > 0


def _why(message: str) -> str:
    """The first complaint of the library, with line and column."""
    found = re.search(r"ERROR: <input>:(-?\d+:-?\d+): ([^\n]*)", message)
    if found is None:
        return f"cannot be compiled: {message.splitlines()[0].split(': ', 1)[-1]}"
    return f"cannot be compiled, at {found[1]}: {found[2]}"


def _shape_of(source: str) -> Shape:
    """Reads token by token; each open bracket remembers which item it binds, if it is a macro's."""
    joined = depth = 0
    roams = builds = False
    frames: list[str] = []
    before = member = ""
    for token in _TOKEN.finditer(source):
        name, mark = token["name"], token["mark"]
        if name is not None:
            if before == "(" and member in _MACROS:
                frames[-1] = name
                depth = max(depth, sum(map(bool, frames)))
                builds = builds or member in _BUILDERS
            elif before != "." and token["called"] is None:
                item = next(filter(None, reversed(frames)), name)
                roams = roams or name not in (item, "true", "false", "null", "in")
            member = name if before == "." else ""
        elif mark in ("(", "[", "{"):
            frames.append("")
        elif mark in (")", "]", "}") and frames:
            frames.pop()
        joined += mark == "+"
        before = mark or name or token[0].strip() or before
    return Shape(joined, depth, roams, builds)


def _longest(value: object) -> int:
    """The length of the longest list or object in some data."""
    longest, rest = 1, [value]
    while rest:
        one = rest.pop()
        if isinstance(one, list | dict):
            longest = max(longest, len(one))
            rest.extend(one.values() if isinstance(one, dict) else one)
    return longest


def _fitting(value: object) -> object:
    """The value without integers that CEL has no type for: beyond 64 bits they become doubles."""
    if isinstance(value, dict):
        return {key: _fitting(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_fitting(one) for one in value]
    if isinstance(value, int) and not _INT_MIN <= value <= _INT_MAX:
        return float(value)
    return value
