"""Bounds of payload sizes. Checked only if the whole request body is larger than the bound.

External payloads count as zero bytes here: they have their own bound.
"""

from collections.abc import Sequence

from perdure.core.bounds import Bounds, Reached
from perdure.core.rejection import CompletionTooLarge, StructuralLimitExceeded
from perdure.core.run.command import Command, PrepareLocalActivity
from perdure.protocols.durable_workflow.payloads import blob_of_envelope
from perdure.web.message import Request

_KIND = "payload_size"
_PAYLOAD_MEMBERS = ("arguments", "result", "envelope")
"""Members of commands that hold payloads."""


def require_input_size(request: Request, bounds: Bounds, *payloads: bytes | None) -> None:
    """Refuse an input of a run that is too large."""
    for payload in payloads:
        reached = find_exceeded(request, bounds, payload)
        if reached is not None:
            raise StructuralLimitExceeded(_message("the input", reached), **reached._asdict())


def require_command_sizes(
    request: Request, bounds: Bounds, commands: Sequence[Command | PrepareLocalActivity]
) -> None:
    """Refuse commands if a payload of one is too large."""
    if len(request.body) <= bounds.payload_bytes_max:
        return
    for index, command in enumerate(commands):
        for name in _PAYLOAD_MEMBERS:
            reached = find_exceeded(request, bounds, getattr(command, name, None))
            if reached is not None:
                at = f"commands.{index}.{name}"
                raise CompletionTooLarge(
                    _message(at, reached), **reached._asdict(), outcome="rejected"
                )


def find_exceeded(request: Request, bounds: Bounds, payload: bytes | None) -> Reached | None:
    """The bound that a payload exceeds; None if it is within the bound."""
    most = bounds.payload_bytes_max
    if len(request.body) <= most or payload is None or len(payload) <= most:
        return None
    size = _size_of(payload)
    return Reached(_KIND, size, most) if size > most else None


def _size_of(payload: bytes) -> int:
    """Size in bytes as SDKs count it: of an envelope only the blob."""
    blob = blob_of_envelope(payload)
    if blob is not None:
        return len(blob)
    return len(payload) - 2 if payload.startswith(b'"') else len(payload)


def _message(what: str, reached: Reached) -> str:
    kind, size, most = reached
    return f"{kind} of {what} is {size}; the limit is {most}"
