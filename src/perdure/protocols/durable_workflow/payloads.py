"""Payloads in requests: validation of envelopes, which pass unchanged, and of plain JSON."""

from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from perdure.core.payload import (
    Frame,
    PayloadError,
    Value,
    decode,
    encode,
    frame_of,
    is_json_representable,
)
from perdure.core.references import MARK, find_flaw
from perdure.core.rejection import InvalidRequest

_OPENING = b'{"codec":"avro","blob":"'
_REFERENCES = ("external_storage", "external_payload")
_COUNTED_BYTES_MAX = 65_536


class _Inline(Struct, forbid_unknown_fields=True):
    codec: str
    blob: str


_inline_decoder = msgspec.json.Decoder(_Inline)


def is_envelope(encoded: bytes) -> bool:
    """Whether encoded JSON is an object with exactly the members of an envelope."""
    if encoded.startswith(_OPENING) and encoded.count(b'"') == 8:
        return True
    if not encoded.startswith(b"{"):
        return False
    members = msgspec.json.decode(encoded, type=dict[str, Raw])
    if len(members) != 2 or "codec" not in members:
        return False
    return any(name in members for name in ("blob", *_REFERENCES))


def require_envelope(encoded: bytes, field: str) -> bytes:
    """An envelope that may be stored verbatim: a known codec and a text blob, or a reference."""
    if encoded.startswith(_OPENING) and encoded.count(b'"') == 8:
        return encoded
    if not is_envelope(encoded):
        raise InvalidRequest(field, "must be an envelope of codec and blob")
    members = msgspec.json.decode(encoded)
    if members["codec"] != "avro":
        raise InvalidRequest(f"{field}.codec", "the codec is avro")
    if "blob" in members and not isinstance(members["blob"], str):
        raise InvalidRequest(f"{field}.blob", "must be a string")
    if "blob" not in members:
        reference = next(name for name in _REFERENCES if name in members)
        if not isinstance(members[reference], dict):
            raise InvalidRequest(f"{field}.{reference}", "must be an object")
        if reference == "external_payload":
            _require_reference(encoded, members[reference], f"{field}.{reference}")
    return encoded


def _require_reference(encoded: bytes, members: dict[str, Any], field: str) -> None:
    flaw = find_flaw(members)
    if flaw is None and MARK not in encoded:
        flaw = "must not contain JSON escapes"
    if flaw is not None:
        raise InvalidRequest(field, flaw)


def require_payload(raw: Raw | UnsetType, field: str) -> bytes | None:
    """The payload of a command: an envelope, a bare blob, or nothing."""
    if raw is UNSET:
        return None
    encoded = bytes(raw)
    if encoded == b"null":
        return None
    if encoded.startswith(b'"'):
        return b'{"codec":"avro","blob":' + encoded + b"}"
    return require_envelope(encoded, field)


def require_storable(value: Any, field: str) -> None:
    """Refuse plain JSON that one of the frames cannot encode: it may become a payload later."""
    if not value:
        return
    try:
        for frame in Frame:
            encode(value, frame)
    except PayloadError as error:
        raise InvalidRequest(field, error.message) from None


def require_plain(encoded: bytes, field: str) -> None:
    """Refuse bytes that are not JSON, or that no payload can carry."""
    try:
        value = msgspec.json.decode(encoded)
    except (msgspec.DecodeError, RecursionError):
        raise InvalidRequest(field, "is not valid JSON") from None
    require_storable(value, field)


def frame_of_envelope(encoded: bytes) -> Frame | None:
    """The frame that an inline envelope declares; None for any other payload."""
    try:
        return frame_of(_inline_decoder.decode(encoded).blob)
    except msgspec.DecodeError:
        return None


def blob_of_envelope(encoded: bytes) -> str | None:
    """The blob of an inline envelope."""
    try:
        return _inline_decoder.decode(encoded).blob
    except msgspec.DecodeError:
        return None


def open_envelope(encoded: bytes | None) -> tuple[bool, Value]:
    """Whether the value could be decoded, and the value."""
    if encoded is None or encoded == b"null":
        return True, None
    try:
        if encoded.startswith(b'"'):
            return True, decode(msgspec.json.decode(encoded, type=str))
        return True, decode(_inline_decoder.decode(encoded).blob)
    except (msgspec.DecodeError, PayloadError):
        return False, None


def count_arguments(encoded: bytes | None) -> int | None:
    """Number of arguments in an envelope; None if it is too large to count, or not a list."""
    if encoded is None:
        return 0
    if len(encoded) > _COUNTED_BYTES_MAX:
        return None
    readable, value = open_envelope(encoded)
    return len(value) if readable and isinstance(value, list) else None


def shown(encoded: bytes | None) -> tuple[Any, bool]:
    """The value of a payload for display, and whether JSON represents it completely."""
    readable, value = open_envelope(encoded)
    if readable and is_json_representable(value):
        return value, True
    return None, False
