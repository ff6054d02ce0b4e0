"""The check of the protocol version of a peer. A peer without a version is accepted."""

PROTOCOL_VERSION = 1


def speaks_ours(registration: object) -> bool:
    """Whether the version of a registration is supported; a range counts before a number."""
    if not isinstance(registration, dict):
        return True
    highest = _number(registration.get("maxProtocolVersion"))
    if highest is not None:
        lowest = _number(registration.get("minProtocolVersion"))
        least = PROTOCOL_VERSION if lowest is None else lowest
        return least <= PROTOCOL_VERSION <= highest
    version = registration.get("protocolVersion")
    return version is None or version == "" or _number(version) == PROTOCOL_VERSION


def _number(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if isinstance(value, int) or value.is_integer() else None
