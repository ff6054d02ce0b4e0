"""When and with which ids a rule decides: the two things that rules may not find themselves."""

from typing import Protocol

from msgspec import Struct


class Ids(Protocol):
    """A source of fresh ids."""

    def ulid(self) -> str: ...
    def hex(self, length: int) -> str: ...


class Moment(Struct, frozen=True):
    """The instant of a decision, and a source of ids for it."""

    now: int
    ids: Ids
