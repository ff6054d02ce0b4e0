"""A check that received JSON stays readable when it is nested in other documents later.

JSON decoders fail at a depth that depends on the call stack, so input is tested somewhat deeper
than it is. They also fail at numbers beyond the range of a double.
"""

import msgspec
from msgspec import Raw

from perdure.core.large_numbers import find_large_number

_SHALLOW = 300
"""With no more lists and objects than this, JSON cannot be too deep."""
_MARGIN = 100
_OPEN, _CLOSE = b"[" * _MARGIN, b"]" * _MARGIN
_skipper = msgspec.json.Decoder(Raw)

TOO_DEEP = "it is nested too deeply"


def find_obstacle(text: bytes) -> str | None:
    """Why received JSON could not be decoded later; none if it could."""
    if is_too_deep(text):
        return TOO_DEEP
    number = find_large_number(text)
    return None if number is None else f"the number {number} is too large"


def is_too_deep(text: bytes) -> bool:
    """Whether JSON is nested too deeply to be decoded later."""
    if text.count(b"[") + text.count(b"{") <= _SHALLOW:
        return False
    try:
        _skipper.decode(_OPEN + text + _CLOSE)
    except RecursionError:
        return True
    except (msgspec.DecodeError, UnicodeDecodeError):
        # The decoder of the caller reports the error.
        return False
    return False
