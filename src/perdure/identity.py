"""The only source of ids and secrets."""

import random
import secrets
from collections.abc import Callable

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS = tuple(high + low for high in _ALPHABET for low in _ALPHABET)


class IdSource:
    """Makes ULIDs: ten characters of milliseconds, sixteen of chance, in lower case.

    Ids name things, they do not protect them; so a fast generator seeded from the system's
    entropy is enough. Secrets come from `token`.
    """

    def __init__(self, now: Callable[[], int], seed: int | None = None) -> None:
        self._now = now
        self._bits = random.Random(secrets.randbits(128) if seed is None else seed).getrandbits
        self._millisecond = -1
        self._prefix = ""

    def ulid(self) -> str:
        """A fresh id."""
        millisecond = self._now() // 1000
        if millisecond != self._millisecond:
            self._millisecond = millisecond
            self._prefix = _base32(millisecond, pairs=5)
        return self._prefix + _base32(self._bits(80), pairs=8)

    def token(self) -> str:
        """A secret of 32 lower-case hex characters."""
        return secrets.token_hex(16)


def _base32(number: int, *, pairs: int) -> str:
    pair = _PAIRS
    if pairs == 8:
        return (
            pair[number >> 70 & 1023]
            + pair[number >> 60 & 1023]
            + pair[number >> 50 & 1023]
            + pair[number >> 40 & 1023]
            + pair[number >> 30 & 1023]
            + pair[number >> 20 & 1023]
            + pair[number >> 10 & 1023]
            + pair[number & 1023]
        )
    return "".join(pair[number >> shift & 1023] for shift in range(10 * (pairs - 1), -1, -10))
