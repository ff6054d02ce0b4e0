"""WebSocket frames as values: bytes in, messages out, and the bytes of what is sent.

A server's part of RFC 6455 and no more: frames of clients are masked, no extension was agreed on,
control frames are short and whole. Sizes are judged by what a frame's head announces, before any of
it is read. Nothing here waits or writes.
"""

from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha1
from typing import NamedTuple

from perdure.web.limits import FRAGMENTS_MAX

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA

NORMAL, GOING_AWAY, PROTOCOL_ERROR = 1000, 1001, 1002
NO_STATUS, NOT_UTF8, POLICY, TOO_BIG, INTERNAL, TRY_LATER = 1005, 1007, 1008, 1009, 1011, 1013

_DATA = frozenset({CONTINUATION, TEXT, BINARY})
_CONTROL = frozenset({CLOSE, PING, PONG})
_CONTROL_BYTES_MAX = 125
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class FrameError(Exception):
    """The stream makes no sense; it ends with this code."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class Message(NamedTuple):
    """A whole message, or a control frame."""

    opcode: int
    payload: bytes


class FrameReader:
    """Gathers the frames of one client into messages."""

    __slots__ = ("_buffer", "_bytes_max", "_fragments", "_fragments_max", "_message", "_opcode")

    def __init__(self, bytes_max: int, fragments_max: int = FRAGMENTS_MAX) -> None:
        self._bytes_max = bytes_max
        self._fragments_max = fragments_max
        self._buffer = bytearray()
        # The message that is under way in several frames.
        self._opcode: int | None = None
        self._message = bytearray()
        self._fragments = 0

    @property
    def pending_bytes(self) -> int:
        """What is held of a message that is not complete."""
        return len(self._buffer) + len(self._message)

    @property
    def is_between(self) -> bool:
        """Whether no message is under way."""
        return self._opcode is None and not self._buffer

    def feed(self, data: bytes) -> Iterator[Message]:
        """Every message that is complete with this data. Raises `FrameError`."""
        self._buffer += data
        while (frame := self._next_frame()) is not None:
            final, opcode, payload = frame
            if opcode in _CONTROL:
                yield Message(opcode, payload)
            elif (message := self._join(final, opcode, payload)) is not None:
                yield message

    def _next_frame(self) -> tuple[bool, int, bytes] | None:
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        first, second = buffer[0], buffer[1]
        opcode, length = first & 0x0F, second & 0x7F
        self._check_head(first, second, opcode, length)
        start = 6
        if length == 126:
            start = 8
            if len(buffer) < 4:
                return None
            length = _minimal(int.from_bytes(buffer[2:4]), 126)
        elif length == 127:
            start = 14
            if len(buffer) < 10:
                return None
            length = _minimal(int.from_bytes(buffer[2:10]), 65_536)
        if len(self._message) + length > self._bytes_max:
            raise FrameError(TOO_BIG, f"a message may have {self._bytes_max} bytes")
        end = start + length
        if len(buffer) < end:
            return None
        payload = _unmask(bytes(buffer[start:end]), bytes(buffer[start - 4 : start]))
        del buffer[:end]
        return bool(first & 0x80), opcode, payload

    def _check_head(self, first: int, second: int, opcode: int, length: int) -> None:
        if first & 0x70:
            raise FrameError(PROTOCOL_ERROR, "no extension was agreed on")
        if not second & 0x80:
            raise FrameError(PROTOCOL_ERROR, "frames of a client are masked")
        if opcode in _CONTROL:
            if not first & 0x80 or length > _CONTROL_BYTES_MAX:
                raise FrameError(PROTOCOL_ERROR, "control frames are short and whole")
        elif opcode not in _DATA:
            raise FrameError(PROTOCOL_ERROR, f"there is no opcode {opcode}")
        elif (opcode == CONTINUATION) is (self._opcode is None):
            raise FrameError(PROTOCOL_ERROR, "frames of one message follow each other")

    def _join(self, final: bool, opcode: int, payload: bytes) -> Message | None:
        if final and self._opcode is None:
            return _checked(opcode, payload)
        if self._opcode is None:
            self._opcode = opcode
        self._fragments += 1
        if self._fragments > self._fragments_max:
            raise FrameError(POLICY, f"a message may come in {self._fragments_max} frames")
        self._message += payload
        if not final:
            return None
        whole, kind = bytes(self._message), self._opcode
        self._opcode, self._message, self._fragments = None, bytearray(), 0
        return _checked(kind, whole)


def _minimal(length: int, least: int) -> int:
    if length < least:
        raise FrameError(PROTOCOL_ERROR, "a length is written as shortly as can be")
    return length


def _checked(opcode: int, payload: bytes) -> Message:
    if opcode == TEXT:
        require_utf8(payload)
    return Message(opcode, payload)


def require_utf8(payload: bytes) -> None:
    if payload.isascii():
        return
    try:
        payload.decode()
    except UnicodeDecodeError:
        raise FrameError(NOT_UTF8, "text is UTF-8") from None


def _unmask(payload: bytes, mask: bytes) -> bytes:
    length = len(payload)
    if not length:
        return payload
    # One large number at a time: per byte this would cost more than all the rest.
    pattern = (mask * (length // 4 + 1))[:length]
    number = int.from_bytes(payload, "little") ^ int.from_bytes(pattern, "little")
    return number.to_bytes(length, "little")


def frame(opcode: int, payload: bytes) -> bytes:
    """One whole frame of a server."""
    length = len(payload)
    if length < 126:
        return bytes((0x80 | opcode, length)) + payload
    if length < 65_536:
        return bytes((0x80 | opcode, 126)) + length.to_bytes(2) + payload
    return bytes((0x80 | opcode, 127)) + length.to_bytes(8) + payload


def close_frame(code: int, reason: str = "") -> bytes:
    """The frame that ends a stream; a reason that is too long is cut."""
    told = reason.encode()[: _CONTROL_BYTES_MAX - 2].decode(errors="ignore").encode()
    return frame(CLOSE, b"" if code == NO_STATUS else code.to_bytes(2) + told)


def close_code(payload: bytes) -> int:
    """The code with which a client closes. Raises `FrameError` for one that means nothing."""
    if not payload:
        return NO_STATUS
    code = int.from_bytes(payload[:2]) if len(payload) > 1 else 0
    known = 1000 <= code <= 1014 and code not in (1004, 1005, 1006)
    if not known and not 3000 <= code <= 4999:
        raise FrameError(PROTOCOL_ERROR, "this close code means nothing")
    require_utf8(payload[2:])
    return code


def accept_key(key: bytes) -> bytes:
    """What a server answers to a client's key, to show that it speaks the protocol."""
    return b64encode(sha1(key + _GUID, usedforsecurity=False).digest())
