"""Which versions of the wire are spoken here, and whether a peer speaks one of them.

Lenient on absence, strict on a present mismatch.
"""

from collections.abc import Mapping

PROTOCOL_VERSION = 1
OWN_RANGE = (PROTOCOL_VERSION, PROTOCOL_VERSION)

PROTOCOL_HEADERS = ("x-durablex-protocol", "x-duraton-protocol")
"""Both names of the header; the engine sends both."""


def fits(told: object) -> bool:
    """Whether a version told in a body is ours."""
    return told is None or told == "" or _integer(told) == PROTOCOL_VERSION


def header_fits(told: str | None) -> bool:
    """Whether a version told in a header, as text, is ours."""
    text = (told or "").strip()
    if not text:
        return True
    return text.isascii() and text.isdigit() and int(text[:9]) == PROTOCOL_VERSION


def range_of(handshake: Mapping[str, object]) -> tuple[int, int]:
    """The versions that a peer speaks: its range, else its one version, else ours."""
    lowest = _integer(handshake.get("minProtocolVersion"))
    highest = _integer(handshake.get("maxProtocolVersion"))
    if highest is not None:
        return (PROTOCOL_VERSION if lowest is None else lowest, highest)
    only = _integer(handshake.get("protocolVersion"))
    return OWN_RANGE if only is None else (only, only)


def common(own: tuple[int, int], peer: tuple[int, int]) -> int | None:
    """The highest version that both speak, if there is one."""
    highest = min(own[1], peer[1])
    return highest if highest >= max(own[0], peer[0]) else None


def _integer(value: object) -> int | None:
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None
