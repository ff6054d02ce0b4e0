"""The only source of ids and secrets."""

import random
import secrets
from collections.abc import Callable

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS = tuple(high + low for high in _ALPHABET for low in _ALPHABET)
_LAST_MAX = len(_PAIRS) - 1


class IdSource:
    """Makes ULIDs: ten characters of milliseconds, sixteen of chance, in lower case.

    Ids name things, they do not protect them; so a fast generator seeded from the system's
    entropy is enough. As long as there is room, only the time and the last two characters move
    on; within a millisecond these order the ids, as the ULID definition allows. Secrets come from
    `token`.
    """

    def __init__(self, now: Callable[[], int], seed: int | None = None) -> None:
        self._now = now
        self._bits = random.Random(secrets.randbits(128) if seed is None else seed).getrandbits
        self._millisecond = -1
        self._second = ""
        self._chance = ""
        self._stem = ""
        self._last = _LAST_MAX

    def ulid(self) -> str:
        """A fresh id."""
        millisecond = self._now() // 1000
        last = self._last + 1
        if millisecond != self._millisecond or last > _LAST_MAX:
            if last > _LAST_MAX // 2:
                # The ids of a millisecond shall find room.
                self._chance = _base32(self._bits(70), pairs=7)
                last = 0
            if millisecond >> 10 != self._millisecond >> 10:
                self._second = _base32(millisecond >> 10, pairs=4)
            self._millisecond = millisecond
            self._stem = self._second + _PAIRS[millisecond & 1023] + self._chance
        self._last = last
        return self._stem + _PAIRS[last]

    def hex(self, length: int) -> str:
        """Some hex digits, not all zero, that name something for others."""
        return f"{self._bits(4 * length) or 1:0{length}x}"

    def token(self) -> str:
        """A secret of 32 lower-case hex characters."""
        return secrets.token_hex(16)


def jitter(most: int) -> int:
    """Some length up to a bound, so that those who wait do not all come back at once."""
    return random.randrange(most + 1)


def first_ulid(millisecond: int) -> str:
    """Where the ids of a millisecond begin."""
    return _base32(millisecond << 70, pairs=12)[:10]


def ulid_millisecond(ulid: str) -> int | None:
    """The millisecond in which an id was made, if it is one of ours."""
    digits = [_ALPHABET.find(character) for character in ulid[:10]]
    if len(ulid) != 26 or -1 in digits:
        return None
    return sum(digit << 5 * place for place, digit in enumerate(reversed(digits)))


def _base32(number: int, *, pairs: int) -> str:
    return "".join([_PAIRS[number >> shift & 1023] for shift in range(10 * (pairs - 1), -1, -10)])
