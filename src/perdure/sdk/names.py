"""Names of steps within a pass, and the hashes under which the engine knows them."""

import hashlib
from functools import lru_cache

from perdure.sdk.errors import StepNameError
from perdure.sdk.limits import NAMES_KEPT


@lru_cache(maxsize=NAMES_KEPT)
def hashed(name: str) -> str:
    """The id of a step on the wire. No normalisation: two spellings of an accent are two steps."""
    return hashlib.sha256(name.encode()).hexdigest()


class Names:
    """The names given so far in one pass."""

    __slots__ = ("_given",)

    def __init__(self) -> None:
        self._given: dict[str, int] = {}
        """Per name: the number of the next use of it as an id; 0 if it was made of another."""

    def give(self, wanted: str) -> str:
        """The name of this use of an id: bare the first time, then `:1`, `:2`, …"""
        given = self._given
        uses = given.get(wanted)
        if uses is None:
            given[wanted] = 1
            return wanted
        name = f"{wanted}:{uses}" if uses else wanted
        if name in given:
            raise StepNameError(
                f"step {wanted!r} would be named {name!r}, which another step has: rename one"
            )
        given[wanted] = uses + 1
        given[name] = 0
        return name
