"""Every phase of a connection has a bound and a deadline: a connection is driven over each."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from perdure.web import frames, limits
from perdure.web.limits import Bound, Progress
from tests.support.http import Stream
from tests.web.floor import BODY_BYTES_MAX, SOCKET_BYTES_MAX, Floor, a_floor, request

HEAD = b"POST /echo HTTP/1.1\r\nHost: floor\r\nContent-Type: application/json\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.fixture
def floor() -> Iterator[Floor]:
    with a_floor(lean=True) as floor:
        yield floor


def a_socket(floor: Floor) -> Stream:
    stream = floor.connect()
    key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    upgrade = f"Connection: Upgrade\r\nUpgrade: websocket\r\n{key}"
    stream.send(request("/socket", method="GET", headers=upgrade))
    assert stream.read_until(b"\r\n\r\n").startswith(b"HTTP/1.1 101")
    return stream


def masked(opcode: int, payload: bytes = b"", *, final: bool = True) -> bytes:
    """A frame of a client, with a mask of zeros."""
    first = (0x80 if final else 0) | opcode
    if len(payload) < 126:
        head = bytes((first, 0x80 | len(payload)))
    elif len(payload) < 65_536:
        head = bytes((first, 0x80 | 126)) + len(payload).to_bytes(2)
    else:
        head = bytes((first, 0x80 | 127)) + len(payload).to_bytes(8)
    return head + bytes(4) + payload


def has_ended(floor: Floor, stream: Stream) -> bytes:
    """Whatever was sent, up to the end; an abort ends it, too."""
    stream.go_on_reading()
    rest = b""
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):
        rest = stream.read_to_end()
    stream.close()
    floor.loop.until(lambda: not floor.connections.count)
    return rest


# Too long -----------------------------------------------------------------------------------------


def idle(floor: Floor) -> Stream:
    stream = floor.connect()
    stream.send(request(body=b"1"))
    stream.read_answer().ok()
    return stream


def in_a_head(floor: Floor) -> Stream:
    stream = floor.connect()
    stream.send(b"POST /echo HTTP/1.1\r\nHost: fl")
    return stream


def in_a_body(floor: Floor) -> Stream:
    stream = floor.connect()
    stream.send(HEAD + b"Content-Length: 10\r\n\r\n12345")
    return stream


def in_a_trailer(floor: Floor) -> Stream:
    stream = floor.connect()
    stream.send(CHUNKED + b"1\r\n1\r\n0\r\nX-Trailer: a")
    return stream


def in_an_answer(floor: Floor) -> Stream:
    stream = floor.connect()
    stream.stop_reading()
    stream.send(request("/huge", method="GET"))
    return stream


def behind_an_upgrade(floor: Floor) -> Stream:
    stream = floor.connect()
    upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\n"
    stream.send(request("/unfinished", method="GET", headers=upgrade))
    floor.loop.until(lambda: "unfinished" in floor.waiting)
    return stream


def in_a_message(floor: Floor) -> Stream:
    stream = a_socket(floor)
    stream.send(masked(frames.TEXT, b"begun", final=False))
    return stream


def not_taking_messages(floor: Floor) -> Stream:
    stream = a_socket(floor)
    stream.stop_reading()
    for _ in range(100):
        floor.sockets[0].socket.send(b"x" * 100_000)
    assert not floor.sockets[0].socket.is_writable
    return stream


def not_taking_events(floor: Floor) -> Stream:
    stream = floor.connect()
    stream.stop_reading()
    stream.send(request("/events", method="GET"))
    return stream


STALLED: dict[str, Callable[[Floor], Stream]] = {
    "idle": idle,
    "head": in_a_head,
    "body": in_a_body,
    "trailer": in_a_trailer,
    "answer": in_an_answer,
    "upgrade": behind_an_upgrade,
    "websocket_in": in_a_message,
    "websocket_out": not_taking_messages,
    "events_out": not_taking_events,
}
ANSWERED = {"head", "body", "trailer"}


@pytest.mark.parametrize("phase", STALLED)
def test_a_connection_that_stands_still_is_cut_off_at_its_deadline(
    floor: Floor, phase: str
) -> None:
    bound = limits.PHASES[phase]
    stream = STALLED[phase](floor)
    floor.settle()

    for _ in range(bound.sweeps):
        floor.check_all()
    assert floor.connections.count == 1, "it was cut off too early"
    floor.check_all()
    floor.settle()

    if phase in ANSWERED:
        stream.read_answer().refused(408, "request_timeout")
        assert stream.read_to_end() == b""
    else:
        has_ended(floor, stream)
    assert floor.connections.memory.held == 0


def test_every_phase_has_a_test_of_its_deadline_and_of_its_bound() -> None:
    # What is read behind a refusal ends by a timer of its own.
    assert set(STALLED) | {"refused"} == set(limits.PHASES)
    # An idle connection holds nothing; an answer is as large as it is.
    assert set(OVERFLOWING) | {"idle", "answer"} == set(limits.PHASES)
    for name, bound in limits.PHASES.items():
        assert bound.seconds > 0, name
        assert bound.bytes_max > 0 or name in {"idle", "body", "answer", "websocket_in"}


def test_a_deadline_is_never_shorter_than_a_sweep() -> None:
    assert Bound(1, 2).sweeps == 1
    assert Bound(1, 75).sweeps == 75 / limits.SWEEP_SECONDS


def test_a_slow_transfer_goes_on_for_as_long_as_it_is_one() -> None:
    bound = Bound(0, 10, 1_000)
    steady, slow = Progress(bound, 0), Progress(bound, 0)
    lates = []
    for sweep in range(1, 100):
        assert not steady.is_late(sweep, 500 * sweep)
        lates.append(slow.is_late(sweep, 300 * sweep))
    assert any(lates)
    # A burst in the beginning does not pay for standing still later.
    burst = Progress(bound, 0)
    assert not burst.is_late(1, 1_000_000)
    assert not burst.is_late(3, 1_000_000)
    assert burst.is_late(4, 1_000_000)


def test_a_steady_slow_upload_is_not_cut() -> None:
    with a_floor(lean=True) as floor:
        floor.app.body_bytes_max = size = 1_000_000
        stream = floor.connect()
        stream.send(HEAD + b"Content-Length: %d\r\n\r\n" % size)
        step = limits.BODY.progress_bytes // limits.BODY.sweeps
        sent = 0
        while sent < size:
            piece = min(step, size - sent)
            stream.send(b"1" * piece)
            sent += piece
            (connection,) = floor.connections.open
            floor.loop.until(partial(floor.has_received, connection, sent))
            floor.check_all()

        assert len(stream.read_answer().ok()["body"]) == size


def test_a_request_in_hand_has_no_deadline_of_the_connection(floor: Floor) -> None:
    stream = floor.connect()
    stream.send(request("/wait/poll", method="GET"))
    floor.loop.until(lambda: "poll" in floor.waiting)

    for _ in range(1_000):
        floor.check_all()
    floor.release("poll")

    assert stream.read_answer().ok() == {"waited": "poll"}


def test_an_answer_that_is_taken_slowly_is_not_cut(floor: Floor) -> None:
    stream = floor.connect()
    stream.stop_reading()
    stream.send(request("/huge", method="GET"))
    floor.settle()

    for _ in range(2 * limits.ANSWER.sweeps):
        stream.read_some(100_000)
        floor.settle()
        floor.check_all()

    assert floor.connections.count == 1


# Too much -----------------------------------------------------------------------------------------


def a_large_head(floor: Floor) -> Stream:
    stream = floor.connect()
    stream.send(b"POST /echo HTTP/1.1\r\nX: " + b"a" * limits.HEAD.bytes_max)
    stream.read_answer().refused(431, "headers_too_large")
    return stream


def a_large_body(floor: Floor) -> Stream:
    stream = floor.connect()
    stream.send(CHUNKED + b"%x\r\n%b" % (BODY_BYTES_MAX + 1, b"1" * (BODY_BYTES_MAX + 1)))
    stream.read_answer().refused(413, "payload_too_large")
    return stream


def large_trailers(floor: Floor) -> Stream:
    stream = floor.connect()
    trailers = b"X-Trailer: %b\r\n" % (b"a" * 100) * (limits.TRAILER.bytes_max // 100)
    stream.send(CHUNKED + b"1\r\n1\r\n0\r\n" + trailers)
    stream.read_answer().refused(431, "headers_too_large")
    return stream


def a_body_behind_a_refusal(floor: Floor) -> Stream:
    stream = floor.connect()
    stream.send(HEAD + b"Content-Length: %d\r\n\r\n" % (10 * limits.REFUSED.bytes_max))
    stream.read_answer().refused(413, "payload_too_large")
    flood(floor, stream, b"1" * 1_000_000, limits.REFUSED.bytes_max + 4_000_000)
    return stream


def early_bytes(floor: Floor) -> Stream:
    stream = behind_an_upgrade(floor)
    flood(floor, stream, b"1" * 10_000, 3 * limits.UPGRADE.bytes_max)
    return stream


def a_large_message(floor: Floor) -> Stream:
    stream = a_socket(floor)
    stream.send(masked(frames.TEXT, b"x" * SOCKET_BYTES_MAX, final=False))
    stream.send(masked(frames.CONTINUATION, b"x"))
    assert stream.read_to_end()[2:4] == frames.TOO_BIG.to_bytes(2)
    return stream


def messages_that_are_not_taken(floor: Floor) -> Stream:
    stream = a_socket(floor)
    stream.stop_reading()
    for _ in range(2 * limits.WEBSOCKET_OUT.bytes_max // 1_000_000):
        floor.sockets[0].socket.send(b"x" * 1_000_000)
    return stream


def events_that_are_not_taken(floor: Floor) -> Stream:
    """They wait until those before are taken, so that no more than one is too many."""
    stream = floor.connect()
    stream.stop_reading()
    stream.send(request("/events", method="GET"))
    floor.settle()
    sent = len(floor.done)
    floor.settle()
    assert len(floor.done) == sent
    (successor,) = floor.connections.handed_over
    successor.abort()
    return stream


OVERFLOWING: dict[str, Callable[[Floor], Stream]] = {
    "head": a_large_head,
    "body": a_large_body,
    "trailer": large_trailers,
    "refused": a_body_behind_a_refusal,
    "upgrade": early_bytes,
    "websocket_in": a_large_message,
    "websocket_out": messages_that_are_not_taken,
    "events_out": events_that_are_not_taken,
}


def flood(floor: Floor, stream: Stream, piece: bytes, size: int) -> None:
    """Send without end, until the other side hangs up."""
    try:
        for _ in range(size // len(piece)):
            stream.send(piece)
    except (ConnectionResetError, BrokenPipeError):
        return
    floor.settle()


@pytest.mark.parametrize("phase", OVERFLOWING)
def test_a_connection_that_holds_too_much_is_ended(floor: Floor, phase: str) -> None:
    stream = OVERFLOWING[phase](floor)
    has_ended(floor, stream)
    assert floor.connections.memory.held == 0


@pytest.mark.parametrize(
    "endless",
    [b"X-Endless: ", b"a", b"X: a\r\n"],
    ids=["one value", "one name", "one after the other"],
)
def test_trailers_that_never_end_are_refused(floor: Floor, endless: bytes) -> None:
    stream = floor.connect()
    stream.send(CHUNKED + b"1\r\n1\r\n0\r\n" + endless)
    for _ in range(2 * limits.TRAILER.bytes_max // 1_000):
        stream.send(endless * 166 if endless.endswith(b"\n") else b"a" * 1_000)
        floor.settle()
    stream.read_answer().refused(431, "headers_too_large")
    assert floor.done == []


def test_the_extensions_of_chunks_have_a_bound(floor: Floor) -> None:
    stream = floor.connect()
    stream.send(CHUNKED)
    for _ in range(2 * limits.TRAILER.bytes_max // 1_000):
        stream.send(b"1;%b\r\n1\r\n" % (b"a" * 1_000))
    stream.read_answer().refused(431, "headers_too_large")


def test_trailers_within_the_bound_are_passed_over(floor: Floor) -> None:
    stream = floor.connect()
    stream.send(CHUNKED + b"1\r\n1\r\n0\r\n")
    for _ in range(limits.TRAILER.bytes_max // 2_000):
        stream.send(b"X-Trailer: %b\r\n" % (b"a" * 1_000))
    stream.send(b"\r\n")
    assert stream.read_answer().ok()["body"] == "1"


def test_pings_of_a_peer_that_does_not_read_are_not_kept(floor: Floor) -> None:
    stream = a_socket(floor)
    stream.stop_reading()
    for _ in range(100):
        floor.sockets[0].socket.send(b"x" * 100_000)
    (successor,) = floor.connections.handed_over
    waiting = floor.unsent(successor)

    for number in range(2_000):
        stream.send(masked(frames.PING, b"%0100d" % number))
    stream.send(masked(frames.TEXT, b"last"))
    floor.loop.until(lambda: floor.sockets[0].messages == [b"last"])

    assert floor.unsent(successor) <= waiting


def test_only_the_latest_ping_is_answered_when_the_peer_reads_again(floor: Floor) -> None:
    stream = a_socket(floor)
    stream.stop_reading()
    for _ in range(100):
        floor.sockets[0].socket.send(b"x" * 100_000)
    stream.send(masked(frames.PING, b"first") + masked(frames.PING, b"second"))
    stream.send(masked(frames.TEXT, b"last"))
    floor.loop.until(lambda: floor.sockets[0].messages == [b"last"])

    stream.go_on_reading()
    told = b""
    while b"second" not in told:
        told = told[-100:] + stream.read_some(1_000_000)

    assert frames.frame(frames.PONG, b"first") not in told


@pytest.mark.parametrize("payload", [b"", b"x"])
def test_a_message_in_too_many_fragments_is_refused(floor: Floor, payload: bytes) -> None:
    stream = a_socket(floor)
    stream.send(masked(frames.TEXT, payload, final=False))
    stream.send(masked(frames.CONTINUATION, payload, final=False) * (limits.FRAGMENTS_MAX - 1))
    stream.send(masked(frames.CONTINUATION, payload, final=False))
    assert stream.read_to_end()[2:4] == frames.POLICY.to_bytes(2)


def test_a_peer_that_answers_no_ping_is_cut_off() -> None:
    with a_floor(lean=True) as floor:
        floor.ping_seconds = 0.002
        stream = a_socket(floor)

        floor.loop.until(lambda: bool(floor.sockets) and floor.sockets[0].is_lost)

        ping = frames.frame(frames.PING, b"")
        assert has_ended(floor, stream) == ping * 2


def test_a_peer_that_answers_pings_stays() -> None:
    with a_floor(lean=True) as floor:
        floor.ping_seconds = 0.002
        stream = a_socket(floor)
        ping = frames.frame(frames.PING, b"")

        for _ in range(10):
            assert stream.read_until(ping) == ping
            stream.send(masked(frames.PONG))

        assert not floor.sockets[0].is_lost
