"""When, with which ids and within which bounds a rule decides: what rules may not find out."""

from typing import Protocol

from msgspec import Struct

from perdure.core.bounds import DEFAULT_BOUNDS, Bounds


class Ids(Protocol):
    """A source of fresh ids."""

    def ulid(self) -> str: ...
    def hex(self, length: int) -> str: ...


class Context(Struct, frozen=True):
    """The instant of a decision, a source of ids for it, and the bounds that are in force."""

    now: int
    ids: Ids
    bounds: Bounds = DEFAULT_BOUNDS
