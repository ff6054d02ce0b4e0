"""Trace contexts in requests and tasks: bounded, passed on, never interpreted.

A trace context grants no rights. One that exceeds its bounds is refused like any invalid value.
"""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from perdure.core import limits
from perdure.core.rejection import InvalidRequest
from perdure.core.run.state_parts import TraceLink
from perdure.protocols.durable_workflow.surfaces import encode

LINKS_SCHEMA = "durable-workflow.trace-links"

_HEADER_BYTES_MAX = {"traceparent": 256, "tracestate": 512, "baggage": 2_048}


class _Headers(Struct, forbid_unknown_fields=True, omit_defaults=True):
    traceparent: str
    tracestate: str | None = None
    baggage: str | None = None


class _Carrier(Struct, forbid_unknown_fields=True):
    schema: Literal["durable-workflow.trace-context"]
    version: Literal[1]
    carrier: _Headers


_decoder = msgspec.json.Decoder(_Carrier)


def read_carrier(raw: Raw | UnsetType, field: str = "observability_context") -> bytes | None:
    """The trace context of a request, checked against its bounds, as it will be passed on."""
    if raw is UNSET or bytes(raw) == b"null":
        return None
    try:
        carrier = _decoder.decode(raw)
    except msgspec.DecodeError as error:
        raise InvalidRequest(field, f"is not a valid trace context: {error}") from None
    for name, most in _HEADER_BYTES_MAX.items():
        header = getattr(carrier.carrier, name)
        if header is not None and len(header.encode()) > most:
            raise InvalidRequest(f"{field}.carrier.{name}", f"at most {most} bytes")
    encoded = encode(carrier)
    if _wire_size(encoded) > limits.TRACE_CONTEXT_BYTES_MAX:
        raise InvalidRequest(field, f"at most {limits.TRACE_CONTEXT_BYTES_MAX} bytes")
    return encoded


def trace_members(
    trace: bytes | None,
    links: Sequence[TraceLink] = (),
    *,
    task_id: str,
    run_id: str,
    namespace: str,
) -> dict[str, Any]:
    """Trace members of a task: the context of its run, and links to commands that caused it."""
    members: dict[str, Any] = {}
    if trace is not None:
        members["observability_context"] = Raw(trace)
    shown_links = _links(links, task_id=task_id, run_id=run_id, namespace=namespace)
    if shown_links is not None:
        members["observability_links"] = shown_links
    return members


def _links(
    links: Sequence[TraceLink], *, task_id: str, run_id: str, namespace: str
) -> dict[str, Any] | None:
    """The newest links that fit, without baggage, which belongs to a single trace."""
    entries = [
        {"kind": "command", "command_id": link.command_id, "context": _without_baggage(link.trace)}
        for link in links
    ]
    while entries:
        block = {
            "schema": LINKS_SCHEMA,
            "version": 1,
            "task_id": task_id,
            "run_id": run_id,
            "namespace": namespace,
            "links": entries,
        }
        if _wire_size(encode(block)) <= limits.TRACE_LINKS_BYTES_MAX:
            return block
        entries = entries[1:]
    return None


def _without_baggage(trace: bytes) -> dict[str, Any]:
    carrier = _decoder.decode(trace)
    carrier.carrier.baggage = None
    context: dict[str, Any] = msgspec.to_builtins(carrier)
    return context


def _wire_size(encoded: bytes) -> int:
    """Size as the SDK counts it: slashes and characters beyond ASCII are escaped."""
    text = encoded.decode()
    return sum(
        1 if character.isascii() else 6 if ord(character) < 0x10000 else 12 for character in text
    ) + text.count("/")
