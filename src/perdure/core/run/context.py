"""Inputs every rule receives: the current time, the id source, and the limits."""

from typing import Protocol

from msgspec import Struct

from perdure.core.bounds import DEFAULT_BOUNDS, Bounds


class Ids(Protocol):
    """A source of new ids."""

    def ulid(self) -> str: ...
    def hex(self, length: int) -> str: ...


class Context(Struct, frozen=True):
    """The time of a decision, its source of ids, and the limits in force."""

    now: int
    ids: Ids
    bounds: Bounds = DEFAULT_BOUNDS
