"""What an event must have for a wait to end: members of its data, and their values.

The engine compares; this module checks what it is asked to, and compares for rehearsals.
"""

import math
from collections.abc import Mapping
from typing import TypeAlias

from perdure.sdk.errors import NonRetriableError
from perdure.sdk.wire import Json

Scalar: TypeAlias = str | int | float | bool | None
Match: TypeAlias = Mapping[str, Scalar]


def required(step: str, match: Match) -> dict[str, Scalar]:
    """The match of a step, if it makes sense."""
    if not match:
        raise NonRetriableError(f"step {step!r} matches nothing; leave match= out for any event")
    for path, value in match.items():
        root, *names = path.split(".") if isinstance(path, str) else ("",)
        if root != "data" or not all(names):
            raise NonRetriableError(f"step {step!r} needs a path such as data.id, not {path!r}")
        if isinstance(value, float) and not math.isfinite(value):
            raise NonRetriableError(f"step {step!r} cannot compare {path} with {value!r}")
        if not isinstance(value, str | int | float | None):
            kind = type(value).__name__
            raise NonRetriableError(f"step {step!r} cannot compare {path} with a {kind}")
    return dict(match)


def meant(step: str, match: Match, data: Json) -> Json:
    """The data of the event that ended a wait. An engine that ignores matches is found out."""
    if data is None or fits(match, data):
        return data
    raise NonRetriableError(
        f"step {step!r} was woken by an event that does not match: the engine ignores match="
    )


def fits(match: Match, data: Json) -> bool:
    """Whether some data has every member of a match, as the engine compares them."""
    return all(_equals(path, value, data) for path, value in match.items())


def _equals(path: str, value: Scalar, data: Json) -> bool:
    for name in path.split(".")[1:]:
        if not isinstance(data, dict) or name not in data:
            return False
        data = data[name]
    # True is 1 to Python, but not to JSON.
    return isinstance(value, bool) is isinstance(data, bool) and bool(data == value)
