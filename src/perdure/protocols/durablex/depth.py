"""Nesting: what is taken in must be readable later, too, inside of other things.

Readers of JSON give up at a depth that depends on where they are called. So what comes in is tried
a little deeper than it is.
"""

import msgspec
from msgspec import Raw

_SHALLOW = 300
"""So few lists and objects are never too deep."""
_MARGIN = 100
_OPEN, _CLOSE = b"[" * _MARGIN, b"]" * _MARGIN
_skipper = msgspec.json.Decoder(Raw)

TOO_DEEP = "it is nested too deeply"


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
