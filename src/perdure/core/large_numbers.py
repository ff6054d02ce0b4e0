"""Detection of JSON numbers that do not fit a double, such as `1e400` or one of 5,000 digits.

Payloads are stored undecoded. Without this check such a number would fail only later, in a
condition, a flow-control key or a view; so every incoming document is scanned once.
"""

import re

_DIGITS = 200
"""A number with fewer digits and an exponent of two is below 1e300."""
_SHAPES = bytes.maketrans(b"123456789E", b"000000000e")
_SUSPICIOUS = (b"e000", b"e+000", b"0" * _DIGITS)
_TEXT_OR_NUMBER = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|(-?[0-9][-+.0-9eE]*)', re.DOTALL)
_SHOWN_LENGTH = 40


def find_large_number(text: bytes) -> str | None:
    """The spelling of the first number in a JSON text that does not fit a double, if any."""
    shapes = text.translate(_SHAPES)
    if not any(suspicious in shapes for suspicious in _SUSPICIOUS):
        return None
    for found in _TEXT_OR_NUMBER.finditer(text):
        if found[1] is not None and _is_large(found[1]):
            return found[1][:_SHOWN_LENGTH].decode()
    return None


def _is_large(number: bytes) -> bool:
    try:
        return abs(float(number)) == float("inf")
    except ValueError:
        return False  # Not a number; the decoder reports it.
