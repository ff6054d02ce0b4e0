"""The payload frames: golden vectors, hostile blobs, and fastavro as the oracle."""

import base64
import contextlib
import inspect
import io
import json
import struct
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pytest
from fastavro.schema import fingerprint, to_parsing_canonical_form
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.payload import (
    FINGERPRINT,
    NESTING_MAX,
    VALUE_SCHEMA,
    WRAPPER_SCHEMA,
    Frame,
    Json,
    PayloadError,
    PayloadReason,
    Value,
    decode,
    encode,
    envelope,
    frame_for_sdk,
    frame_of,
    is_json_representable,
)

FIXTURES = Path(__file__).parents[1] / "fixtures" / "codec"
GOLDEN: dict[str, Any] = json.loads((FIXTURES / "avro-value-v1-golden.json").read_text("utf-8"))
REJECTED = sorted(FIXTURES.glob("*-rejected.json"))
ROUND_TRIP = [FIXTURES / "avro-value-v1-long-zero.json"]

HEADER = b"\xc3\x01" + FINGERPRINT
ORACLE_SCHEMA = fastavro.parse_schema(VALUE_SCHEMA)
HUGE = 2**60

VALUE_VECTORS: list[tuple[Value, str]] = [
    (None, "wwHioz3/VYAiNwA="),
    (True, "wwHioz3/VYAiNwIB"),
    (False, "wwHioz3/VYAiNwIA"),
    (0, "wwHioz3/VYAiNwQA"),
    (1, "wwHioz3/VYAiNwQC"),
    (-1, "wwHioz3/VYAiNwQB"),
    (300, "wwHioz3/VYAiNwTYBA=="),
    (9223372036854775807, "wwHioz3/VYAiNwT+//////////8B"),
    (1.5, "wwHioz3/VYAiNwYAAAAAAAD4Pw=="),
    (7.0, "wwHioz3/VYAiNwYAAAAAAAAcQA=="),
    (b"\x00\xff", "wwHioz3/VYAiNwgEAP8="),
    ("", "wwHioz3/VYAiNwoA"),
    ("hello", "wwHioz3/VYAiNwoKaGVsbG8="),
    ([], "wwHioz3/VYAiNwwA"),
    ([1, "a"], "wwHioz3/VYAiNwwEBAIKAmEA"),
    (["world"], "wwHioz3/VYAiNwwCCgp3b3JsZAA="),
    ({}, "wwHioz3/VYAiNw4A"),
    ({"a": 1}, "wwHioz3/VYAiNw4CAmEEAgA="),
    ({"k": [None, {"x": 2.0}]}, "wwHioz3/VYAiNw4CAmsMBAAOAgJ4BgAAAAAAAABAAAAA"),
]

WRAPPER_VECTORS: list[tuple[Json, str]] = [
    (None, "AAhudWxsAg=="),
    (1, "AAIxAg=="),
    ("hello", "AA4iaGVsbG8iAg=="),
    ([], "AARbXQI="),
    (["world"], "ABJbIndvcmxkIl0C"),
    ({"a": 1}, "AA57ImEiOjF9Ag=="),
    ("é", "AAgiw6kiAg=="),
]

# The golden file names the kind of its containers but not their content.
GOLDEN_CONTAINERS: dict[str, Value] = {
    "array": [None, True, 7, 7.0, b"\x00\xff", "text"],
    "map": {"a": 1, "b": [False]},
    "map_empty": {},
    "map_key_0": {"0": "zero"},
    "map_keys_0_1": {"0": "zero", "1": "one"},
    "nested": {"items": [{"enabled": True}, b"bytes", -2.5]},
}

longs = st.integers(min_value=-(2**63), max_value=2**63 - 1)
doubles = st.floats(allow_nan=False, allow_infinity=False)
plain_leaves = st.none() | st.booleans() | doubles | st.text()


def trees_of(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(), inner, max_size=6),
        max_leaves=24,
    )


json_trees = trees_of(plain_leaves | st.integers())
value_trees = trees_of(plain_leaves | longs | st.binary())


def zigzag(number: int) -> bytes:
    bits = (number << 1) ^ (number >> 63)
    written = bytearray()
    while bits >= 0x80:
        written.append(bits & 0x7F | 0x80)
        bits >>= 7
    written.append(bits)
    return bytes(written)


# --- vectors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "blob"), VALUE_VECTORS, ids=repr)
def test_a_value_frame_is_byte_exact_both_ways(value: Value, blob: str) -> None:
    assert encode(value, Frame.VALUE) == blob
    assert_same(decode(blob), value)
    assert frame_of(blob) is Frame.VALUE


@pytest.mark.parametrize(("value", "blob"), WRAPPER_VECTORS, ids=repr)
def test_a_wrapper_frame_is_byte_exact_both_ways(value: Json, blob: str) -> None:
    assert encode(value, Frame.WRAPPER) == blob
    assert_same(decode(blob), value)
    assert frame_of(blob) is Frame.WRAPPER


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: str(case["name"]))
def test_every_golden_frame_decodes_and_encodes_to_itself(case: dict[str, Any]) -> None:
    expected = golden_value(case)

    assert_same(decode(case["wire_base64"]), expected)
    assert encode(expected, Frame.VALUE) == case["wire_base64"]


@pytest.mark.parametrize("case", GOLDEN["alternate_map_orders"], ids=lambda c: str(c["name"]))
def test_the_order_of_a_map_does_not_matter(case: dict[str, Any]) -> None:
    first, second = (decode(blob) for blob in case["wire_base64"])

    assert first == second == {"tail": "done", "outer": [{"left": 1, "right": b"x"}]}


@pytest.mark.parametrize("case", GOLDEN["malformed_frames"], ids=lambda case: str(case["name"]))
def test_every_malformed_golden_frame_is_refused_with_its_reason(case: dict[str, Any]) -> None:
    assert refusal_of(case["wire_base64"]).reason == case["error"]


@pytest.mark.parametrize("path", ROUND_TRIP, ids=lambda path: str(path.stem))
def test_a_regression_frame_round_trips(path: Path) -> None:
    fixture = json.loads(path.read_text("utf-8"))
    blob = fixture["framing"]["wire_base64"]
    assert fixture["failure_policy"]["operation"] == "round_trip"

    assert_same(decode(blob), int(fixture["value"]["value"]))
    assert encode(decode(blob), Frame.VALUE) == blob


@pytest.mark.parametrize("path", REJECTED, ids=lambda path: str(path.stem))
def test_a_blob_of_a_foreign_codec_is_refused_even_without_its_tag(path: Path) -> None:
    blob = json.loads(path.read_text("utf-8"))["framing"]["wire_base64"]

    assert refusal_of(blob).reason is PayloadReason.INVALID_FRAMING
    assert frame_of(blob) is None


def test_the_fingerprint_is_the_one_of_the_schema() -> None:
    published = (FIXTURES / "durable_workflow.protocol.Value.v1.avsc").read_text("utf-8")
    canonical = to_parsing_canonical_form(VALUE_SCHEMA)

    assert json.loads(published) == VALUE_SCHEMA
    assert fingerprint(canonical, "CRC-64-AVRO") == FINGERPRINT.hex() == GOLDEN["fingerprint"]


# --- round trips and the oracle -----------------------------------------------------------------


@given(value_trees)
def test_a_value_survives_its_value_frame(value: Value) -> None:
    assert_same(decode(encode(value, Frame.VALUE)), value)


@given(json_trees)
def test_a_value_survives_its_wrapper_frame(value: Json) -> None:
    assert_same(decode(encode(value, Frame.WRAPPER)), value)


@given(value_trees)
def test_fastavro_reads_what_we_write(value: Value) -> None:
    raw = base64.b64decode(encode(value, Frame.VALUE))

    assert raw.startswith(HEADER)
    assert_same(oracle_value(raw[len(HEADER) :]), value)


@given(json_trees)
def test_fastavro_reads_the_wrapper_we_write(value: Json) -> None:
    raw = base64.b64decode(encode(value, Frame.WRAPPER))
    schema = fastavro.parse_schema(WRAPPER_SCHEMA)

    record: Any = fastavro.schemaless_reader(io.BytesIO(raw[1:]), schema, None)

    assert record["version"] == 1
    assert_same(json.loads(record["json"]), value)


@given(value_trees, st.data())
def test_containers_in_several_blocks_with_and_without_sizes_are_read(
    value: Value, data: st.DataObject
) -> None:
    datum = in_random_blocks(value, lambda limit: data.draw(st.integers(1, limit)), data)

    assert_same(decode(framed(datum)), value)
    assert_same(oracle_value(datum), value)


@given(st.binary(max_size=64))
def test_arbitrary_bytes_are_read_as_fastavro_reads_them_or_refused(datum: bytes) -> None:
    try:
        value = decode(framed(datum))
    except PayloadError:
        return
    assert_same(oracle_value(datum), value)


@given(value_trees, st.data())
def test_a_damaged_frame_is_read_as_fastavro_reads_it_or_refused(
    value: Value, data: st.DataObject
) -> None:
    datum = bytearray(base64.b64decode(encode(value, Frame.VALUE))[len(HEADER) :])
    position = data.draw(st.integers(0, len(datum) - 1))
    datum[position] = data.draw(st.integers(0, 255))

    try:
        decoded = decode(framed(bytes(datum)))
    except PayloadError:
        return
    assert_same(oracle_value(bytes(datum)), decoded)


# --- types --------------------------------------------------------------------------------------


@pytest.mark.parametrize("frame", Frame)
def test_integers_floats_and_booleans_stay_distinct(frame: Frame) -> None:
    value: Json = [7, 7.0, True, 1, False, 0, -0.0]

    assert_same(decode(encode(value, frame)), value)


def test_plain_json_numbers_become_longs_or_doubles_by_their_spelling() -> None:
    document: Json = json.loads("[1, 1.0, 1e0, -0]")

    assert_same(decode(encode(document, Frame.VALUE)), [1, 1.0, 1.0, 0])


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**30])
def test_a_value_frame_refuses_integers_beyond_64_bits(number: int) -> None:
    assert encoding_refusal_of([number], Frame.VALUE).reason is PayloadReason.UNREPRESENTABLE
    assert decode(encode([number], Frame.WRAPPER)) == [number]


@pytest.mark.parametrize("frame", Frame)
@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_not_finite_is_not_framed(number: float, frame: Frame) -> None:
    assert encoding_refusal_of({"x": number}, frame).reason is PayloadReason.UNREPRESENTABLE


@pytest.mark.parametrize("frame", Frame)
@pytest.mark.parametrize("value", ["\ud800", ["a\udfff"], {"\ud800": 1}])
def test_a_lone_surrogate_is_not_framed(value: Json, frame: Frame) -> None:
    assert encoding_refusal_of(value, frame).reason is PayloadReason.UNREPRESENTABLE


@pytest.mark.parametrize("frame", Frame)
@pytest.mark.parametrize("value", [{1: "a"}, {None: "a"}, {1, 2}, range(3), bytearray(), object()])
def test_what_is_not_a_payload_type_is_not_framed(value: Any, frame: Frame) -> None:
    assert encoding_refusal_of(value, frame).reason is PayloadReason.UNREPRESENTABLE


@pytest.mark.parametrize("frame", Frame)
def test_a_tuple_is_framed_as_an_array(frame: Frame) -> None:
    assert encode((1, ("a",)), frame) == encode([1, ["a"]], frame)


def test_a_wrapper_frame_refuses_bytes() -> None:
    assert encoding_refusal_of([b"x"], Frame.WRAPPER).reason is PayloadReason.UNREPRESENTABLE


def test_an_integer_too_long_to_spell_is_not_framed() -> None:
    assert encoding_refusal_of(10**5000, Frame.WRAPPER).reason is PayloadReason.UNREPRESENTABLE


def test_wrapper_text_is_compact_and_leaves_slashes_and_letters_alone() -> None:
    text = '{"a/b":["é",1.0]}'

    assert base64.b64decode(encode({"a/b": ["é", 1.0]}, Frame.WRAPPER)) == wrapped_raw(text)


@pytest.mark.parametrize(
    ("value", "representable"),
    [
        (None, True),
        ({"a": [1, 2.5, "x", {"b": []}]}, True),
        (b"", False),
        ([[{"a": b"x"}]], False),
    ],
)
def test_bytes_at_any_depth_cannot_be_shown_as_json(value: Value, representable: bool) -> None:
    assert is_json_representable(value) is representable


# --- malformed blobs ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "blob",
    [
        "wwHioz3/VYAiNwA",  # padding missing
        "wwHioz3/VYAiNwA=\n",
        "wwHioz3/VYAi NwA=",
        "wwHioz3_VYAiNwA=",  # the URL alphabet
        "wwHioz3/VYAiNwA=AAAA",
        "=",
        "AA==AA==",
        "é",
        "\ud800",
    ],
)
def test_base64_is_strict(blob: str) -> None:
    assert refusal_of(blob).reason is PayloadReason.INVALID_FRAMING


@given(
    st.text(max_size=40) | st.binary(max_size=40).map(lambda raw: base64.b64encode(raw).decode())
)
def test_no_blob_escapes_as_anything_but_a_payload_error(blob: str) -> None:
    with contextlib.suppress(PayloadError):
        decode(blob)


@given(value_trees, st.data())
def test_a_frame_cut_anywhere_is_refused(value: Value, data: st.DataObject) -> None:
    frame = data.draw(st.sampled_from(Frame)) if is_json_representable(value) else Frame.VALUE
    raw = base64.b64decode(encode(value, frame))
    cut = data.draw(st.integers(0, len(raw) - 1))

    assert refusal_of(blob_of(raw[:cut])).reason is PayloadReason.INVALID_FRAMING


@given(value_trees, st.binary(min_size=1, max_size=8))
def test_bytes_after_the_value_are_refused(value: Value, tail: bytes) -> None:
    raw = base64.b64decode(encode(value, Frame.VALUE))

    assert refusal_of(blob_of(raw + tail)).reason is PayloadReason.INVALID_FRAMING


@pytest.mark.parametrize(
    "datum",
    [
        pytest.param(b"\x01", id="branch minus one"),
        pytest.param(b"\x02\x02", id="boolean two"),
        pytest.param(b"\x04" + b"\x80" * 10 + b"\x00", id="integer of eleven bytes"),
        pytest.param(b"\x04" + b"\xff" * 9 + b"\x02", id="integer of 65 bits"),
        pytest.param(b"\x0a\x01", id="string of length minus one"),
        pytest.param(b"\x08\x03xx", id="bytes of length minus two"),
        pytest.param(b"\x0a\x06\xed\xa0\x80", id="surrogate in UTF-8"),
        pytest.param(b"\x0a\x04\xc0\x80", id="overlong UTF-8"),
        pytest.param(b"\x0e\x02\x02\xff\x00\x00", id="key that is not UTF-8"),
        pytest.param(b"\x0c\x01\x04\x00\x00", id="block shorter than announced"),
        pytest.param(b"\x0c\x03\x02\x00\x00\x00", id="block longer than announced"),
        pytest.param(b"\x0c\x01\x01\x00\x00", id="block of negative size"),
    ],
)
def test_a_datum_that_breaks_avro_is_refused(datum: bytes) -> None:
    assert refusal_of(framed(datum)).reason is PayloadReason.INVALID_FRAMING


def test_an_integer_padded_with_empty_groups_is_read() -> None:
    assert decode(framed(b"\x04\x82\x80\x00")) == 1


def test_the_last_of_two_equal_keys_wins_in_both_frames() -> None:
    twice = b"\x0e\x04\x02a\x04\x02\x02a\x04\x04\x00"

    assert decode(framed(twice)) == oracle_value(twice) == {"a": 2}
    assert decode(wrapped('{"a":1,"a":2}')) == {"a": 2}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1,]",
        "'a'",
        "NaN",
        "[Infinity]",
        "-Infinity",
        "1e999",
        '{"a":[-1e999]}',
        '"\\ud800"',
        '{"\\udfff":1}',
        '"\x00"',
        "1 2",
        "\ufeff1",
        "1" * 5000,
    ],
    ids=lambda text: repr(text[:20]),
)
def test_a_wrapper_with_unusable_json_is_refused(text: str) -> None:
    assert refusal_of(wrapped(text)).reason is PayloadReason.INVALID_FRAMING


def test_a_wrapper_with_text_that_is_not_utf8_is_refused() -> None:
    assert refusal_of(blob_of(b"\x00\x06\x22\xff\x22\x02")).reason is PayloadReason.INVALID_FRAMING


def test_bytes_after_a_wrapper_are_refused() -> None:
    blob = blob_of(wrapped_raw("1") + b"\x00")

    assert refusal_of(blob).reason is PayloadReason.INVALID_FRAMING


@pytest.mark.parametrize("version", [0, 2, -1])
def test_a_wrapper_of_another_version_is_refused(version: int) -> None:
    assert refusal_of(wrapped("1", version)).reason is PayloadReason.UNSUPPORTED_SCHEMA


def test_the_reserved_typed_prefix_is_refused() -> None:
    blob = blob_of(b"\x01" + wrapped_raw("1")[1:])

    assert refusal_of(blob).reason is PayloadReason.UNSUPPORTED_SCHEMA
    assert frame_of(blob) is None


# --- bounds -------------------------------------------------------------------------------------


@pytest.mark.parametrize("frame", Frame)
@pytest.mark.parametrize("wrap", [lambda inner: [inner], lambda inner: {"k": inner}])
def test_nesting_is_bounded_the_same_way_in_both_directions(
    wrap: Callable[[Json], Json], frame: Frame
) -> None:
    deepest: Json = "leaf"
    for _ in range(NESTING_MAX):
        deepest = wrap(deepest)

    assert decode(encode(deepest, frame)) == deepest
    assert encoding_refusal_of(wrap(deepest), frame).reason is PayloadReason.TOO_DEEP


@pytest.mark.parametrize("levels", [NESTING_MAX + 1, 20_000, 1_000_000])
def test_a_blob_that_nests_without_end_is_refused(levels: int) -> None:
    arrays = b"\x0c\x02" * levels + b"\x00" + b"\x00" * levels
    maps = b"\x0e\x02\x00" * levels + b"\x00" + b"\x00" * levels

    assert refusal_of(framed(arrays)).reason is PayloadReason.TOO_DEEP
    assert refusal_of(framed(maps)).reason is PayloadReason.TOO_DEEP
    assert refusal_of(wrapped("[" * levels + "]" * levels)).reason is PayloadReason.TOO_DEEP
    assert (
        refusal_of(wrapped('{"":' * levels + "1" + "}" * levels)).reason is PayloadReason.TOO_DEEP
    )


def test_a_value_that_holds_itself_is_not_framed() -> None:
    loop: list[Value] = []
    loop.append(loop)

    assert encoding_refusal_of(loop, Frame.VALUE).reason is PayloadReason.TOO_DEEP
    assert encoding_refusal_of(loop, Frame.WRAPPER).reason is PayloadReason.TOO_DEEP


@pytest.mark.parametrize("frame", Frame)
def test_a_caller_deep_in_the_stack_gets_a_value_or_a_payload_error(frame: Frame) -> None:
    deepest: Json = "leaf"
    for _ in range(NESTING_MAX):
        deepest = [deepest]
    blob = encode(deepest, frame)

    def descend(levels: int) -> Value | PayloadError:
        if levels:
            return descend(levels - 1)
        try:
            return decode(blob)
        except PayloadError as error:
            return error

    room = sys.getrecursionlimit() - len(inspect.stack(0))
    answers = [descend(room - left) for left in range(20, room, 20)]

    assert answers[-1] == deepest
    assert all(
        answer == deepest
        or (isinstance(answer, PayloadError) and answer.reason is PayloadReason.TOO_DEEP)
        for answer in answers
    )


@pytest.mark.parametrize(
    "datum",
    [
        pytest.param(b"\x0c" + zigzag(HUGE) + b"\x00" * 8, id="array"),
        pytest.param(b"\x0e" + zigzag(HUGE) + b"\x00" * 8, id="map"),
        pytest.param(b"\x0c" + zigzag(-HUGE) + b"\x02" + b"\x00" * 8, id="array with a size"),
        pytest.param(b"\x0c" + zigzag(-(2**63)) + b"\x02" + b"\x00" * 8, id="least count"),
        pytest.param(b"\x0e\x0a" + b"\x00" * 9, id="map of two-byte entries"),
        pytest.param(b"\x0a" + zigzag(HUGE), id="string"),
        pytest.param(b"\x08" + zigzag(HUGE), id="bytes"),
    ],
)
def test_a_count_beyond_the_bytes_present_is_refused_at_once(datum: bytes) -> None:
    blob = framed(datum)
    tracemalloc.start()
    try:
        error = refusal_of(blob)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert error.reason is PayloadReason.INVALID_FRAMING
    assert peak_bytes < 64 * 1024


# --- frames and envelopes -----------------------------------------------------------------------


@given(st.binary(max_size=12))
def test_the_first_characters_tell_the_frame_that_the_first_bytes_tell(raw: bytes) -> None:
    expected = (
        Frame.VALUE
        if raw.startswith(b"\xc3\x01")
        else Frame.WRAPPER
        if raw.startswith(b"\x00")
        else None
    )

    assert frame_of(blob_of(raw)) is expected


@pytest.mark.parametrize(
    ("opening", "frame"), [(b"\xc3\x01", Frame.VALUE), (b"\x00", Frame.WRAPPER)]
)
def test_whatever_byte_follows_the_opening_the_frame_is_told(opening: bytes, frame: Frame) -> None:
    assert all(frame_of(blob_of(opening + bytes([byte]))) is frame for byte in range(256))


@given(st.text(max_size=8))
def test_asking_for_the_frame_never_raises(blob: str) -> None:
    frame_of(blob)


def test_an_unknown_fingerprint_still_claims_the_value_frame() -> None:
    assert frame_of("wwEdoz3/VYAiNwA=") is Frame.VALUE


@pytest.mark.parametrize(
    ("sdk_version", "frame"),
    [
        ("durable-workflow-python/0.4.1", Frame.WRAPPER),
        ("durable-workflow-python/0.9", Frame.WRAPPER),
        ("durable-workflow-python/2.12.0", Frame.VALUE),
        ("durable-workflow-python/2.0.0-rc.30", Frame.VALUE),
        ("durable-workflow-rust/0.1.0", Frame.VALUE),
        ("", Frame.VALUE),
        (None, Frame.VALUE),
    ],
)
def test_the_registered_sdk_decides_the_frame(sdk_version: str | None, frame: Frame) -> None:
    assert frame_for_sdk(sdk_version) is frame


@pytest.mark.parametrize(
    ("frame", "blob"), [(Frame.VALUE, "wwHioz3/VYAiNwwA"), (Frame.WRAPPER, "AARbXQI=")]
)
def test_an_envelope_has_exactly_a_codec_and_a_blob(frame: Frame, blob: str) -> None:
    assert envelope([], frame) == {"codec": "avro", "blob": blob}


# --- support ------------------------------------------------------------------------------------


def assert_same(left: object, right: object) -> None:
    """Equality that tells 7 from 7.0, True from 1 and -0.0 from 0.0, but not map orders."""
    assert fingerprint_of(left) == fingerprint_of(right)


def fingerprint_of(value: object) -> object:
    if isinstance(value, list):
        return [fingerprint_of(item) for item in value]
    if isinstance(value, dict):
        return {key: fingerprint_of(item) for key, item in value.items()}
    return type(value).__name__, repr(value)


def refusal_of(blob: str) -> PayloadError:
    with pytest.raises(PayloadError) as caught:
        decode(blob)
    return caught.value


def encoding_refusal_of(value: Any, frame: Frame) -> PayloadError:
    with pytest.raises(PayloadError) as caught:
        encode(value, frame)
    return caught.value


def golden_value(case: dict[str, Any]) -> Value:
    match case["kind"]:
        case "null":
            return None
        case "boolean":
            return bool(case["value"])
        case "long":
            return int(case["value"])
        case "double":
            return float(case["value"])
        case "bytes":
            return base64.b64decode(case["value_base64"])
        case "string":
            return str(case["value"])
        case _:
            return GOLDEN_CONTAINERS[case["name"]]


def oracle_value(datum: bytes) -> Value:
    """What fastavro makes of a datum; it must use up every byte."""
    stream = io.BytesIO(datum)
    record: Any = fastavro.schemaless_reader(stream, ORACLE_SCHEMA, None)
    assert stream.read() == b""
    return plain(record)


def plain(record: dict[str, Any]) -> Value:
    match record["value"]:
        case {"items": items}:
            return [plain(item) for item in items]
        case {"entries": entries}:
            return {key: plain(item) for key, item in entries.items()}
        case None:
            return None
        case dict() as record_of_one:
            leaf: Value
            (leaf,) = record_of_one.values()
            return leaf
        case other:
            raise AssertionError(other)


def in_random_blocks(value: Value, draw: Callable[[int], int], data: st.DataObject) -> bytes:
    """An Avro writer of our own that splits containers where the strategy says."""
    if isinstance(value, list):
        items = [in_random_blocks(item, draw, data) for item in value]
        return b"\x0c" + blocks(items, draw, data)
    if isinstance(value, dict):
        entries = [
            sized(key.encode()) + in_random_blocks(item, draw, data) for key, item in value.items()
        ]
        return b"\x0e" + blocks(entries, draw, data)
    return leaf_datum(value)


def blocks(items: list[bytes], draw: Callable[[int], int], data: st.DataObject) -> bytes:
    written = b""
    while items:
        count = draw(len(items))
        block, items = b"".join(items[:count]), items[count:]
        with_size = data.draw(st.booleans())
        written += (zigzag(-count) + zigzag(len(block)) if with_size else zigzag(count)) + block
    return written + b"\x00"


def leaf_datum(value: Value) -> bytes:
    match value:
        case None:
            return b"\x00"
        case bool():
            return b"\x02" + bytes([value])
        case int():
            return b"\x04" + zigzag(value)
        case float():
            return b"\x06" + struct.pack("<d", value)
        case bytes():
            return b"\x08" + sized(value)
        case str():
            return b"\x0a" + sized(value.encode())
        case _:
            raise AssertionError(value)


def sized(content: bytes) -> bytes:
    return zigzag(len(content)) + content


def framed(datum: bytes) -> str:
    return blob_of(HEADER + datum)


def wrapped(text: str, version: int = 1) -> str:
    return blob_of(wrapped_raw(text, version))


def wrapped_raw(text: str, version: int = 1) -> bytes:
    return b"\x00" + sized(text.encode()) + zigzag(version)


def blob_of(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")
