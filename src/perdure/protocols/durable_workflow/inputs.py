"""Names and inputs of signals, queries, updates and starts, as clients send them."""

from typing import Any

from msgspec import UNSET

from perdure.core.bounds import Bounds
from perdure.core.rejection import InvalidRequest
from perdure.core.run.inbox import MESSAGE_SIGNAL
from perdure.protocols.durable_workflow.bodies import Absent
from perdure.protocols.durable_workflow.payloads import (
    is_envelope,
    require_envelope,
    require_plain,
)


def read_input(raw: Absent, field: str) -> tuple[bytes | None, bytes | None]:
    """An envelope, or plain JSON, or neither."""
    if raw is UNSET:
        return None, None
    encoded = bytes(raw)
    if encoded == b"null":
        return None, None
    if is_envelope(encoded):
        return require_envelope(encoded, field), None
    if encoded[:1] not in (b"[", b"{"):
        raise InvalidRequest(field, "must be a list, an object or an envelope")
    # Checked for both frames, so that encoding it later cannot fail.
    require_plain(encoded, field)
    return None, encoded


def require_signal_name(name: str, bounds: Bounds) -> str:
    """A valid signal name that is not reserved."""
    if name == MESSAGE_SIGNAL:
        raise InvalidRequest("signal_name", "is reserved for message streams")
    return require_operation_name(name, "signal_name", bounds)


def require_own_signals(contracts: dict[str, Any]) -> None:
    """Refuse code that declares the reserved signal: such signals would not reach it."""
    for workflow_type, contract in contracts.items():
        names = contract.get("signals") if isinstance(contract, dict) else None
        if isinstance(names, list) and MESSAGE_SIGNAL in names:
            field = f"workflow_command_contracts.{workflow_type[:255]}.signals"
            raise InvalidRequest(field, f"{MESSAGE_SIGNAL} is reserved for message streams")


def require_operation_name(name: str, field: str, bounds: Bounds) -> str:
    if len(name.encode()) > bounds.operation_name_bytes_max:
        raise InvalidRequest(field, f"at most {bounds.operation_name_bytes_max} bytes")
    if any(ord(character) < 32 or ord(character) == 127 for character in name):
        raise InvalidRequest(field, "must not hold control characters")
    return name
