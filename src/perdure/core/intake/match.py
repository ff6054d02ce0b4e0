"""Matches of event waits: equality between members of an event and given values, and their index.

A match names members of the data by dotted paths, such as `data.order.id`, and the value that each
must have. Equality is typed: a text equals only a text, numbers equal by value (1 and 1.0), true
and false only themselves, null only a null that is present. A missing member, a list or an object
equals nothing.

The index of a match is one digest of the paths and one of the values, so that the matches of an
event are found without reading the others. `equalities` derives a match from a filter: the
comparisons that must be true for the filter to be true.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias, TypeGuard

import msgspec
from msgspec import UNSET

from perdure.core.intake.expression import Event
from perdure.core.limits import MATCH_BYTES_MAX, MATCH_MEMBERS_MAX

Scalar: TypeAlias = str | int | float | bool | None
Match: TypeAlias = Mapping[str, Scalar]

_decoder = msgspec.json.Decoder()
_ROOT = "data"
_EXACT = 1 << 53
"""Below this, whole numbers and doubles compare without rounding."""


class Index(NamedTuple):
    """The index key of a wait: the paths that it compares, and a digest of paths and values."""

    paths: tuple[str, ...]
    key: str

    @property
    def shape(self) -> str:
        return self.key.partition(":")[0]


def read_match(sent: bytes) -> dict[str, Scalar]:
    """Decode a match. Raises ValueError if it is not valid."""
    if len(sent) > MATCH_BYTES_MAX:
        raise ValueError(f"has more than {MATCH_BYTES_MAX} bytes")
    try:
        members = _decoder.decode(sent)
    except (msgspec.DecodeError, RecursionError):
        raise ValueError("is no JSON") from None
    if not isinstance(members, dict) or not members:
        raise ValueError("must be an object that names at least one member of the data")
    if len(members) > MATCH_MEMBERS_MAX:
        raise ValueError(f"names more than {MATCH_MEMBERS_MAX} members")
    for path, value in members.items():
        root, *names = path.split(".")
        if root != _ROOT or not all(names):
            raise ValueError(f"names {path[:64]!r}, which is not a path such as data.order.id")
        if isinstance(value, dict | list):
            raise ValueError(f"compares {path[:64]} with a list or an object")
    return members


def holds(match: Match, event: Event) -> bool:
    """Whether an event has every member that a match names, with its value."""
    data = data_of(event)
    return all(_token(value_at(data, path)) == _token(value) for path, value in match.items())


def index_of(match: Match) -> Index | None:
    """The index key of a match; None for one that compares nothing."""
    if not match:
        return None
    paths = tuple(sorted(match))
    digest = digest_of(paths, match)
    return Index(paths, f"{_digest(paths)}:{digest}")


def digest_of(paths: Sequence[str], values: Match) -> str:
    """A digest of the values at some paths."""
    tokens = (_token(values[path]) for path in paths)
    return _digest(token for token in tokens if token is not None)


def digest_in(paths: Sequence[str], event: Event) -> str | None:
    """The same for an event; None if it lacks one of the members, so that no match holds."""
    data = data_of(event)
    tokens = [_token(value_at(data, path)) for path in paths]
    return None if None in tokens else _digest(token for token in tokens if token is not None)


def data_of(event: Event) -> object:
    """The data of an event; UNSET, which has no members, for bytes that are not JSON."""
    try:
        return event.value
    except (ValueError, RecursionError, msgspec.DecodeError):
        return UNSET


def value_at(data: object, path: str) -> object:
    """The value at a path such as `data.order.id`; UNSET if there is none."""
    for name in path.split(".")[1:]:
        if not isinstance(data, dict) or name not in data:
            return UNSET
        data = data[name]
    return data


def _token(value: object) -> str | None:
    """A text that is the same for equal values and different for others; None equals nothing."""
    match value:
        case str():
            return "s" + value
        case None | bool():
            return repr(value)
        case int() | float():
            return f"n{int(value)}" if value == int(value) else f"n{value!r}"
        case _:
            return None


def _digest(texts: Iterable[str]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        digest.update(b"%d:%b" % (len(data), data))
    return digest.hexdigest()


# Equalities in filters ----------------------------------------------------------------------------

_FILTER_TOKEN = re.compile(
    r"""\s+|(?P<name>[A-Za-z_]\w*)|(?P<text>"[^"\n]*"|'[^'\n]*')"""
    r"""|(?P<number>\d+(?:\.\d+)?)(?![\w.])|(?P<mark>&&|\|\||[=!<>]=|[-+*/%<>!?:.,()\[\]{}])""",
    re.ASCII,
)
_UNREADABLE = re.compile(r"""\\|//|'{3}|"{3}""")
"""Escapes, comments and long texts: filters with these are not analysed, only evaluated."""
_CONSTANTS: Mapping[str, Scalar] = {"true": True, "false": False, "null": None}
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?", re.ASCII)
_MEMBER = re.compile(r"(event|trigger)((?: \. [A-Za-z_]\w*)+)", re.ASCII)


def equalities(source: str, trigger: Event) -> dict[str, Scalar]:
    """The members of an event that a filter compares with known values, so that it can hold only
    where they are equal. The filter must compile. Parts of another form are left out.

    The analysed parts are those of a conjunction (`… && …`) of the form `event.data.id == 'A1'` or
    `event.data.id == trigger.data.id`, in either order.
    """
    found: dict[str, Scalar] = {}
    for part in _conjuncts(source):
        left, equals, right = part.partition(" == ")
        if not equals:
            continue
        for path, other in ((left, right), (right, left)):
            value = _known(other, trigger)
            member = _MEMBER.fullmatch(path)
            if member is None or member[1] != "event" or value is UNSET:
                continue
            names = member[2].replace(" ", "")[1:]
            if names.partition(".")[0] == _ROOT and _is_comparable(value):
                found.setdefault(names, value)
    return found


def _known(part: str, trigger: Event) -> object:
    """The value of one side of an equality, if it is known; else UNSET."""
    if part in _CONSTANTS:
        return _CONSTANTS[part]
    if part[:1] in ("'", '"'):
        return part[1:-1] if part.find(part[0], 1) == len(part) - 1 else UNSET
    number = part.replace("- ", "-", 1)
    if _NUMBER.fullmatch(number) is not None:
        return float(number) if "." in number else int(number)
    member = _MEMBER.fullmatch(part)
    if member is None or member[1] != "trigger":
        return UNSET
    names = member[2].replace(" ", "")[1:]
    return value_at(data_of(trigger), names) if names.partition(".")[0] == _ROOT else UNSET


def _is_comparable(value: object) -> TypeGuard[Scalar]:
    """Whether filters and matches compare it alike; they differ for numbers that may be rounded."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return -_EXACT < value < _EXACT
    return _token(value) is not None


def _conjuncts(source: str) -> Iterator[str]:
    """The parts of a conjunction, their tokens separated by single spaces; none if the filter is
    another kind of expression."""
    if _UNREADABLE.search(source) is not None:
        return
    parts: list[list[str]] = [[]]
    depth = place = 0
    while place < len(source):
        token = _FILTER_TOKEN.match(source, place)
        if token is None:
            return
        place = token.end()
        text = token[0]
        if text.isspace():
            continue
        depth += (text in "([{") - (text in ")]}")
        if depth == 0 and text in ("||", "?", ":"):
            return
        if depth == 0 and text == "&&":
            parts.append([])
        else:
            parts[-1].append(text)
    yield from (" ".join(part) for part in parts)
