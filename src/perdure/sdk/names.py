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

    __slots__ = ("_given", "_uses")

    def __init__(self) -> None:
        self._uses: dict[str, int] = {}
        self._given: set[str] = set()

    def give(self, wanted: str) -> str:
        """The name of this use of an id: bare the first time, then `:1`, `:2`, …"""
        uses = self._uses.get(wanted, 0)
        self._uses[wanted] = uses + 1
        name = f"{wanted}:{uses}" if uses else wanted
        if name in self._given:
            raise StepNameError(
                f"step {wanted!r} would be named {name!r}, which another step has: rename one"
            )
        self._given.add(name)
        return name
