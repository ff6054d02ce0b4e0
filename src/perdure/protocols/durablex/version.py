"""Which version of the protocol a peer speaks: silence is consent, a mismatch is not."""

PROTOCOL_VERSION = 1


def speaks_ours(told: object) -> bool:
    """Whether a registration is of a peer that we understand; a range counts before a number."""
    if not isinstance(told, dict):
        return True
    highest = _number(told.get("maxProtocolVersion"))
    if highest is not None:
        lowest = _number(told.get("minProtocolVersion"))
        least = PROTOCOL_VERSION if lowest is None else lowest
        return least <= PROTOCOL_VERSION <= highest
    version = told.get("protocolVersion")
    return version is None or version == "" or _number(version) == PROTOCOL_VERSION


def _number(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if isinstance(value, int) or value.is_integer() else None
