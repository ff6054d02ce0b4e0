"""What is taken in must be readable later, too, inside of other things.

Readers of JSON give up at a depth that depends on where they are called. So what comes in is tried
a little deeper than it is. They give up at numbers that no double holds, too.
"""

import msgspec
from msgspec import Raw

from perdure.core.large_numbers import find_large_number

_SHALLOW = 300
"""So few lists and objects are never too deep."""
_MARGIN = 100
_OPEN, _CLOSE = b"[" * _MARGIN, b"]" * _MARGIN
_skipper = msgspec.json.Decoder(Raw)

TOO_DEEP = "it is nested too deeply"


def find_obstacle(text: bytes) -> str | None:
    """Why JSON that is taken in could not be read back, if that is so."""
    if is_too_deep(text):
        return TOO_DEEP
    number = find_large_number(text)
    return None if number is None else f"the number {number} is too large"


def is_too_deep(text: bytes) -> bool:
    """Whether JSON is nested so deeply that it could not be read back."""
    if text.count(b"[") + text.count(b"{") <= _SHALLOW:
        return False
    try:
        _skipper.decode(_OPEN + text + _CLOSE)
    except RecursionError:
        return True
    except (msgspec.DecodeError, UnicodeDecodeError):
        # Whoever reads it says why.
        return False
    return False
