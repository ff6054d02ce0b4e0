"""Frames of WebSockets, as values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.web import frames
from perdure.web.frames import FrameError, FrameReader, Message

MASK = b"\x01\x80\xfe\x7f"
MOST = 1_000


def masked(opcode: int, payload: bytes, *, final: bool = True, bits: int = 0) -> bytes:
    """A frame of a client."""
    head = bytes(((0x80 if final else 0) | bits | opcode,))
    if len(payload) < 126:
        head += bytes((0x80 | len(payload),))
    elif len(payload) < 65_536:
        head += bytes((0x80 | 126,)) + len(payload).to_bytes(2)
    else:
        head += bytes((0x80 | 127,)) + len(payload).to_bytes(8)
    return head + MASK + bytes(byte ^ MASK[i % 4] for i, byte in enumerate(payload))


def read(data: bytes, most: int = MOST) -> list[Message]:
    return list(FrameReader(most).feed(data))


@given(
    st.lists(st.binary(max_size=300).map(lambda b: Message(frames.BINARY, b)), max_size=5),
    st.integers(1, 97),
)
def test_messages_come_out_however_the_stream_is_cut(sent: list[Message], size: int) -> None:
    stream = b"".join(masked(message.opcode, message.payload) for message in sent)
    reader = FrameReader(MOST)
    got: list[Message] = []
    for start in range(0, len(stream), size):
        got += reader.feed(stream[start : start + size])
    assert got == sent


def test_a_message_may_come_in_pieces_with_control_frames_between() -> None:
    stream = (
        masked(frames.TEXT, b"one ", final=False)
        + masked(frames.PING, b"!")
        + masked(frames.CONTINUATION, b"two ", final=False)
        + masked(frames.CONTINUATION, b"three")
        + masked(frames.TEXT, b"four")
    )
    assert read(stream) == [
        Message(frames.PING, b"!"),
        Message(frames.TEXT, b"one two three"),
        Message(frames.TEXT, b"four"),
    ]


def test_a_character_may_be_cut_between_two_frames() -> None:
    text = "grün".encode()
    stream = masked(frames.TEXT, text[:3], final=False) + masked(frames.CONTINUATION, text[3:])
    assert read(stream) == [Message(frames.TEXT, text)]


@pytest.mark.parametrize(
    ("stream", "code"),
    [
        (frames.frame(frames.TEXT, b"bare"), frames.PROTOCOL_ERROR),
        (masked(frames.TEXT, b"x", bits=0x40), frames.PROTOCOL_ERROR),
        (masked(0x3, b"x"), frames.PROTOCOL_ERROR),
        (masked(0xB, b""), frames.PROTOCOL_ERROR),
        (masked(frames.PING, b"x", final=False), frames.PROTOCOL_ERROR),
        (masked(frames.PING, b"x" * 126), frames.PROTOCOL_ERROR),
        (masked(frames.CONTINUATION, b"x"), frames.PROTOCOL_ERROR),
        (
            masked(frames.TEXT, b"x", final=False) + masked(frames.TEXT, b"y"),
            frames.PROTOCOL_ERROR,
        ),
        (masked(frames.TEXT, b"\xff"), frames.NOT_UTF8),
    ],
)
def test_what_makes_no_sense_ends_the_stream(stream: bytes, code: int) -> None:
    with pytest.raises(FrameError) as refused:
        read(stream)
    assert refused.value.code == code


def test_a_size_is_judged_by_the_head_alone() -> None:
    head = masked(frames.TEXT, b"x" * (MOST + 1))[:4]
    with pytest.raises(FrameError) as refused:
        read(head)
    assert refused.value.code == frames.TOO_BIG
    huge = bytes((0x81, 0xFF)) + (2**63).to_bytes(8)
    with pytest.raises(FrameError):
        read(huge)


def test_pieces_count_together() -> None:
    half = b"x" * (MOST // 2 + 1)
    stream = masked(frames.TEXT, half, final=False) + masked(frames.CONTINUATION, half)
    with pytest.raises(FrameError) as refused:
        read(stream)
    assert refused.value.code == frames.TOO_BIG


@pytest.mark.parametrize("length", [0, 125, 126, 65_535, 65_536])
def test_what_we_send_announces_its_length(length: int) -> None:
    sent = frames.frame(frames.TEXT, b"x" * length)
    head = 2 if length < 126 else 4 if length < 65_536 else 10
    assert len(sent) == head + length
    announced = int.from_bytes(sent[2:head]) if head > 2 else sent[1]
    assert announced == length
    assert sent[0] == 0x81


def test_a_long_reason_is_cut_between_characters() -> None:
    sent = frames.close_frame(1008, "ü" * 100)
    assert len(sent) <= 127
    assert sent[4:].decode() == "ü" * 61


@pytest.mark.parametrize("payload", [b"\x03", b"\x03\xed", b"\x03\xee", b"\x00\x01", b"\x13\x88"])
def test_close_codes_that_mean_nothing_are_errors(payload: bytes) -> None:
    with pytest.raises(FrameError):
        frames.close_code(payload)


def test_close_codes_are_read() -> None:
    assert frames.close_code(b"") == frames.NO_STATUS
    assert frames.close_code(b"\x03\xe8bye") == frames.NORMAL
    assert frames.close_code((4000).to_bytes(2)) == 4000


def test_the_handshake_key_is_answered_as_the_rfc_says() -> None:
    assert frames.accept_key(b"dGhlIHNhbXBsZSBub25jZQ==") == b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


@pytest.mark.parametrize(
    "head", [b"\x81\xfe\x00\x7d", b"\x81\xff\0\0\0\0\0\0\xff\xff", b"\x81\xff" + bytes(8)]
)
def test_a_length_is_written_as_shortly_as_can_be(head: bytes) -> None:
    with pytest.raises(FrameError) as refused:
        read(head)
    assert refused.value.code == frames.PROTOCOL_ERROR


@pytest.mark.parametrize("size", [125, 126, 65_535, 65_536])
def test_lengths_at_their_edges_are_read(size: int) -> None:
    whole = masked(frames.BINARY, bytes(size))
    assert read(whole, most=100_000) == [(frames.BINARY, bytes(size))]


@pytest.mark.parametrize(
    ("size", "head"),
    [
        (125, b"\x82\x7d"),
        (126, b"\x82\x7e\x00\x7e"),
        (65_535, b"\x82\x7e\xff\xff"),
        (65_536, b"\x82\x7f\0\0\0\0\0\x01\0\0"),
    ],
)
def test_the_head_of_what_is_sent_tells_its_length(size: int, head: bytes) -> None:
    assert frames.frame(frames.BINARY, bytes(size)) == head + bytes(size)
