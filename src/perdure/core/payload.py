"""Payload blobs: encoding and decoding of the two Avro frames of the Durable Workflow protocol.

perdure stores payloads verbatim and does not decode them on the hot path. This module is for the
few places that must: showing a value to a person, matching arguments, and making a payload out of
plain JSON for a worker. Blobs are untrusted: time and memory stay proportional to the length of a
blob, and every fault in it becomes a `PayloadError`.

Encoding uses fastavro. Decoding does not: fastavro's compiled reader recurses without a bound, so a
blob of 40 kB that nests 20,000 arrays kills the process, and it accepts negative union branches,
overlong integers, booleans other than 0 and 1, and NaN. The reader below is small because it knows
one schema; the tests compare it with fastavro.
"""

import base64
import enum
import io
import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NoReturn, TypeAlias, TypeGuard

import fastavro
from fastavro.types import Schema

from perdure.core.limits import PAYLOAD_NESTING_MAX

# Containers inside containers. Each level costs the reader two Python frames, so this stays far
# below the interpreter's own limit while no sane payload comes near it.
NESTING_MAX: Final = PAYLOAD_NESTING_MAX

FINGERPRINT: Final = bytes.fromhex("e2a33dff55802237")

# The branches of the recursive union after null, in the order that numbers them on the wire.
_BRANCH_FIELDS: Final[tuple[tuple[str, str, object], ...]] = (
    ("BooleanValue", "boolean", "boolean"),
    ("LongValue", "long", "long"),
    ("DoubleValue", "double", "double"),
    ("BytesValue", "bytes", "bytes"),
    ("StringValue", "string", "string"),
    ("ArrayValue", "items", {"type": "array", "items": "Value"}),
    ("MapValue", "entries", {"type": "map", "values": "Value"}),
)

VALUE_SCHEMA: Final = {
    "type": "record",
    "name": "Value",
    "namespace": "durable_workflow.protocol",
    "fields": [
        {
            "name": "value",
            "type": [
                "null",
                *(
                    {"type": "record", "name": name, "fields": [{"name": field, "type": kind}]}
                    for name, field, kind in _BRANCH_FIELDS
                ),
            ],
        }
    ],
}

WRAPPER_SCHEMA: Final = {
    "type": "record",
    "name": "Payload",
    "namespace": "durable_workflow",
    "fields": [
        {"name": "json", "type": "string"},
        {"name": "version", "type": "int", "default": 1},
    ],
}

_VALUE: Final = fastavro.parse_schema(VALUE_SCHEMA)
_WRAPPER: Final = fastavro.parse_schema(WRAPPER_SCHEMA)

_MAGIC: Final = b"\xc3\x01"
_VALUE_HEADER: Final = _MAGIC + FINGERPRINT
_WRAPPER_HEADER: Final = b"\x00"
_TYPED_HEADER: Final = b"\x01"
_WRAPPER_VERSION: Final = 1

# Base64 mixes neighbouring bytes in one character, so each opening has several spellings:
# C3 01 followed by anything, and 00 followed by anything.
_VALUE_OPENINGS: Final = ("wwE", "wwF", "wwG", "wwH")
_WRAPPER_OPENINGS: Final = tuple("A" + second for second in "ABCDEFGHIJKLMNOP")

_LONG_MIN: Final = -(2**63)
_LONG_MAX: Final = 2**63 - 1
_VARINT_BYTES_MAX: Final = 10
_DOUBLE: Final = struct.Struct("<d")

Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None
Value: TypeAlias = bool | int | float | str | bytes | list["Value"] | dict[str, "Value"] | None
# What may be encoded: read-only, so that a `list[int]` or a `Json` is one without a cast.
Encodable: TypeAlias = (
    bool | int | float | str | bytes | Sequence["Encodable"] | Mapping[str, "Encodable"] | None
)
# What fastavro writes: every union branch is named, so that it need not guess by trying each one.
_Datum: TypeAlias = dict[str, tuple[str, dict[str, object]] | None]


class Frame(enum.Enum):
    """How the bytes of a blob are laid out; a run stays in one frame for its whole life."""

    VALUE = "value"
    """2.x: Avro single-object encoding of the recursive record `Value`."""

    WRAPPER = "wrapper"
    """0.4: a zero byte and a record that holds JSON text."""


class PayloadReason(enum.StrEnum):
    """Why a blob cannot be opened, or a value not be framed."""

    INVALID_FRAMING = "invalid_payload_framing"
    UNSUPPORTED_SCHEMA = "unsupported_payload_schema"
    TOO_DEEP = "payload_too_deep"
    UNREPRESENTABLE = "unrepresentable_payload"


class PayloadError(Exception):
    """A malformed blob, or a value that its frame cannot carry."""

    def __init__(self, reason: PayloadReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


def encode(value: Encodable, frame: Frame) -> str:
    """The blob of a value; `bytes` and only 64-bit integers in `VALUE`, plain JSON in `WRAPPER`."""
    _require_representable(value, frame)
    match frame:
        case Frame.VALUE:
            raw = _write(_VALUE_HEADER, _VALUE, _datum(value))
        case Frame.WRAPPER:
            raw = _write(
                _WRAPPER_HEADER, _WRAPPER, {"json": _json_text(value), "version": _WRAPPER_VERSION}
            )
    return base64.b64encode(raw).decode("ascii")


def decode(blob: str) -> Value:
    """The value inside a blob of either frame; everything malformed is a `PayloadError`."""
    try:
        raw = base64.b64decode(blob, validate=True)
    except ValueError as error:
        raise _invalid(f"blob is not strict base64: {error}") from None
    try:
        return _decode_raw(raw)
    except RecursionError:
        # The JSON parser has no depth bound, and the caller may already be deep in the stack.
        raise _too_deep() from None


def frame_of(blob: str) -> Frame | None:
    """The frame a blob claims to have, from its first characters only; never raises."""
    if blob.startswith(_VALUE_OPENINGS):
        return Frame.VALUE
    if blob.startswith(_WRAPPER_OPENINGS):
        return Frame.WRAPPER
    return None


def envelope(value: Encodable, frame: Frame) -> dict[str, str]:
    """The wire form of an inline payload: exactly `codec` and `blob`."""
    return {"codec": "avro", "blob": encode(value, frame)}


def frame_for_sdk(sdk_version: str | None) -> Frame:
    """The frame a worker reads. Its registered SDK decides, not the protocol header."""
    if sdk_version is not None and sdk_version.startswith("durable-workflow-python/0."):
        return Frame.WRAPPER
    return Frame.VALUE


def is_json_representable(value: Value) -> TypeGuard[Json]:
    """Whether a decoded value can be shown as JSON, that is, holds no bytes at any depth."""
    pending = [value]
    while pending:
        item = pending.pop()
        match item:
            case bytes():
                return False
            case list():
                pending.extend(item)
            case dict():
                pending.extend(item.values())
            case _:
                pass
    return True


# --- encoding -----------------------------------------------------------------------------------


def _require_representable(value: Encodable, frame: Frame) -> None:
    """Refuse what the frame cannot carry, and what the JSON of other languages cannot read."""
    pending: list[tuple[Encodable, int]] = [(value, 0)]
    while pending:
        item, depth = pending.pop()
        match item:
            case bytes() if frame is Frame.WRAPPER:
                raise _unrepresentable("bytes have no place in the JSON of a wrapper frame")
            case None | bool() | bytes():
                pass
            case int() if frame is Frame.VALUE and not _LONG_MIN <= item <= _LONG_MAX:
                raise _unrepresentable("an integer does not fit in signed 64 bits")
            case float() if not math.isfinite(item):
                raise _unrepresentable(f"{item} is not a finite number")
            case int() | float():
                pass
            case str():
                _require_unicode(item)
            case list() | tuple():
                _require_shallow(depth)
                pending.extend((child, depth + 1) for child in item)
            case dict():
                _require_shallow(depth)
                for key, child in item.items():
                    _require_key(key)
                    pending.append((child, depth + 1))
            case _:
                _refuse_type(item)


def _require_key(key: object) -> None:
    if not isinstance(key, str):
        raise _unrepresentable(f"a map key is {type(key).__name__}, not a string")
    _require_unicode(key)


def _require_unicode(text: str) -> None:
    if text.isascii():
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise _unrepresentable("a string holds a lone surrogate") from None


def _require_shallow(depth: int) -> None:
    if depth >= NESTING_MAX:
        raise _too_deep()


def _refuse_type(item: object) -> NoReturn:
    raise _unrepresentable(f"{type(item).__name__} is not a payload type")


def _datum(value: Encodable) -> _Datum:
    """A checked value in fastavro's shape, so its depth is already bounded."""
    match value:
        case None:
            return {"value": None}
        case bool():
            return _branch("BooleanValue", "boolean", value)
        case int():
            return _branch("LongValue", "long", value)
        case float():
            return _branch("DoubleValue", "double", value)
        case bytes():
            return _branch("BytesValue", "bytes", value)
        case str():
            return _branch("StringValue", "string", value)
        case list() | tuple():
            return _branch("ArrayValue", "items", [_datum(item) for item in value])
        case dict():
            return _branch("MapValue", "entries", {k: _datum(v) for k, v in value.items()})
        case _:
            _refuse_type(value)


def _branch(record: str, field: str, content: object) -> _Datum:
    return {"value": (f"durable_workflow.protocol.{record}", {field: content})}


_JSON_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _json_text(value: Encodable) -> str:
    try:
        return _JSON_ENCODER.encode(value)
    except ValueError:
        # The interpreter refuses to spell integers of more than a few thousand digits.
        raise _unrepresentable("an integer has too many digits for JSON text") from None


def _write(header: bytes, schema: Schema, datum: Mapping[str, object]) -> bytes:
    buffer = io.BytesIO()
    buffer.write(header)
    fastavro.schemaless_writer(buffer, schema, datum)
    return buffer.getvalue()


# --- decoding -----------------------------------------------------------------------------------


def _decode_raw(raw: bytes) -> Value:
    if raw.startswith(_MAGIC):
        return _decode_value(raw)
    if raw.startswith(_WRAPPER_HEADER):
        return _decode_wrapper(raw)
    if raw.startswith(_TYPED_HEADER):
        raise _unsupported("prefix 01 announces a typed schema, which is reserved")
    raise _invalid(f"blob opens with {raw[:2].hex() or 'nothing'}, which is no known frame")


def _decode_value(raw: bytes) -> Value:
    fingerprint = raw[len(_MAGIC) : len(_VALUE_HEADER)]
    if len(fingerprint) < len(FINGERPRINT):
        raise _invalid("frame ends inside its fingerprint")
    if fingerprint != FINGERPRINT:
        raise _unsupported(f"no schema has the fingerprint {fingerprint.hex()}")
    reader = _Reader(raw, start=len(_VALUE_HEADER))
    value = reader.value(depth=0)
    reader.require_end()
    return value


def _decode_wrapper(raw: bytes) -> Value:
    reader = _Reader(raw, start=len(_WRAPPER_HEADER))
    text = reader.string()
    version = reader.long()
    reader.require_end()
    if version != _WRAPPER_VERSION:
        raise _unsupported(f"wrapper version {version} is not {_WRAPPER_VERSION}")
    return _parse_json(text)


def _parse_json(text: str) -> Value:
    try:
        value: Value = _JSON_DECODER.decode(text)
    except ValueError as error:
        raise _invalid(f"wrapper holds invalid JSON: {error}") from None
    try:
        # The parser lets through what the grammar allows but no frame may carry: 1e999, "\ud800".
        _require_representable(value, Frame.WRAPPER)
    except PayloadError as error:
        if error.reason is PayloadReason.UNREPRESENTABLE:
            raise _invalid(f"wrapper holds unusable JSON: {error.message}") from None
        raise
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_JSON_DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant)


class _Reader:
    """A cursor over one Avro datum that never reads, allocates or recurses beyond its bytes."""

    __slots__ = ("_end", "_position", "_raw")

    def __init__(self, raw: bytes, *, start: int) -> None:
        self._raw = raw
        self._position = start
        self._end = len(raw)

    def require_end(self) -> None:
        if self._position != self._end:
            raise _invalid(f"{self._end - self._position} bytes follow the value")

    def value(self, depth: int) -> Value:
        branch = self.long()
        if not 0 <= branch < len(_BRANCHES):
            raise _invalid(f"union branch {branch} does not exist")
        return _BRANCHES[branch](self, depth)

    def boolean(self) -> bool:
        byte = self._take(1)[0]
        if byte > 1:
            raise _invalid(f"boolean is neither 0 nor 1 but {byte}")
        return byte == 1

    def long(self) -> int:
        """A zig-zag varint of at most 64 bits; padding with empty groups is legal Avro."""
        raw, position, end = self._raw, self._position, self._end
        bits = shift = 0
        while position < end:
            byte = raw[position]
            position += 1
            bits |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift == 7 * _VARINT_BYTES_MAX:
                raise _invalid("integer is longer than ten bytes")
        else:
            raise _invalid("frame ends inside an integer")
        if bits >> 64:
            raise _invalid("integer does not fit in 64 bits")
        self._position = position
        return (bits >> 1) ^ -(bits & 1)

    def double(self) -> float:
        number: float = _DOUBLE.unpack(self._take(_DOUBLE.size))[0]
        if not math.isfinite(number):
            raise _invalid(f"{number} is not a finite number")
        return number

    def bytes_(self) -> bytes:
        return self._take(self.long())

    def string(self) -> str:
        try:
            return self._take(self.long()).decode("utf-8")
        except UnicodeDecodeError as error:
            raise _invalid(f"string is not UTF-8: {error.reason}") from None

    def array(self, depth: int) -> list[Value]:
        _require_shallow(depth)
        items: list[Value] = []
        for _ in self._each(item_bytes_min=1):
            items.append(self.value(depth + 1))
        return items

    def map(self, depth: int) -> dict[str, Value]:
        _require_shallow(depth)
        entries: dict[str, Value] = {}
        for _ in self._each(item_bytes_min=2):
            key = self.string()
            entries[key] = self.value(depth + 1)
        return entries

    def _each(self, *, item_bytes_min: int) -> Iterator[None]:
        """Yield once for every item of every block; the caller reads the item."""
        while count := self.long():
            block_end = None
            if count < 0:
                # A negative count announces the block's size, for readers that want to skip it.
                count = -count
                block_size = self.long()
                block_end = self._position + block_size
            # Refuse a count of more items than the rest of the frame can hold.
            if count * item_bytes_min > self._end - self._position:
                raise _invalid(f"block of {count} items is longer than the frame")
            for _ in range(count):
                yield
            if block_end is not None and block_end != self._position:
                raise _invalid("block does not have the size it announced")

    def _take(self, length: int) -> bytes:
        start = self._position
        if not 0 <= length <= self._end - start:
            raise _invalid(f"{length} bytes announced, {self._end - start} present")
        self._position = start + length
        return self._raw[start : self._position]


_BRANCHES: Final[tuple[Callable[[_Reader, int], Value], ...]] = (
    lambda reader, depth: None,
    lambda reader, depth: reader.boolean(),
    lambda reader, depth: reader.long(),
    lambda reader, depth: reader.double(),
    lambda reader, depth: reader.bytes_(),
    lambda reader, depth: reader.string(),
    _Reader.array,
    _Reader.map,
)


def _invalid(message: str) -> PayloadError:
    return PayloadError(PayloadReason.INVALID_FRAMING, message)


def _unsupported(message: str) -> PayloadError:
    return PayloadError(PayloadReason.UNSUPPORTED_SCHEMA, message)


def _unrepresentable(message: str) -> PayloadError:
    return PayloadError(PayloadReason.UNREPRESENTABLE, message)


def _too_deep() -> PayloadError:
    return PayloadError(
        PayloadReason.TOO_DEEP, f"payload nests deeper than {NESTING_MAX} containers"
    )
