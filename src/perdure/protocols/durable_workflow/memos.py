"""Memos whose payloads were uploaded apart: read back and stored inline, so they can be shown."""

from typing import Any

import msgspec
from msgspec import Raw

from perdure.core.bounds import Bounds
from perdure.core.external import require_intact
from perdure.core.references import MARK, read_reference
from perdure.core.rejection import ExternalPayloadNotFound, InvalidRequest
from perdure.protocols.durable_workflow.commands import WireCommand, WireUpsertMemo
from perdure.protocols.durable_workflow.payloads import is_envelope, require_envelope
from perdure.store.interface import PayloadKey, Store


async def inline_memos(
    store: Store, namespace: str, commands: list[WireCommand], bounds: Bounds
) -> None:
    """Replace references to external payloads in `upsert_memo` commands by the payloads."""
    for index, command in enumerate(commands):
        if isinstance(command, WireUpsertMemo) and MARK in bytes(command.entries):
            at = f"commands.{index}.entries"
            entries = bytes(command.entries)
            most = 2 * bounds.memo_bytes_max
            inlined = await inline_envelope(store, namespace, entries, at, bytes_max=most)
            command.entries = Raw(inlined)


async def inline_envelope(
    store: Store, namespace: str, encoded: bytes, at: str, *, bytes_max: int
) -> bytes:
    """The envelope with its payload inline, read from the store if it was uploaded apart."""
    if not is_envelope(encoded):
        return encoded
    require_envelope(encoded, at)
    members: dict[str, Any] = msgspec.json.decode(encoded)
    if "external_payload" not in members:
        return encoded
    reference = read_reference(members["external_payload"])
    if reference.size_bytes > bytes_max:
        raise InvalidRequest(at, f"must be at most {bytes_max} bytes")
    data = await store.read_payload(PayloadKey(namespace, reference.reference_id))
    if data is None:
        raise ExternalPayloadNotFound(
            f"there is no external payload {reference.reference_id} in this namespace",
            reference_id=reference.reference_id,
            retryable=False,
        )
    require_intact(reference, data)
    return msgspec.json.encode({"codec": "avro", "blob": data.decode("ascii")})
