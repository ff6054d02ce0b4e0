"""How much room strangers may take: connections, and the memory of bodies."""

import contextlib
import gc
from collections.abc import Iterator

import pytest

from perdure.web import limits
from perdure.web.connection import HttpConnection
from perdure.web.limits import ConnectionLimits
from perdure.web.memory import SMALL_BYTES_MAX, Memory
from perdure.web.message import Request
from tests.support.http import Stream
from tests.web.floor import Floor, a_floor, request

TOKEN = "Authorization: Bearer s3cret\r\n"
JSON = "Content-Type: application/json\r\n"


@pytest.fixture
def small() -> Iterator[Floor]:
    """A server with room for four connections, and eight more for a look at their heads."""
    with a_floor(lean=True, limits=ConnectionLimits(4, 3, 1_000_000)) as floor:
        yield floor


def known(floor: Floor, name: str = "") -> Stream:
    """A connection of a client with a credential, perhaps with a request in hand."""
    stream = floor.connect()
    stream.send(request("/work", b"1", headers=TOKEN))
    stream.read_answer().ok()
    if name:
        stream.send(request(f"/work/{name}", method="GET", headers=TOKEN))
        floor.loop.until(lambda: name in floor.waiting)
    return stream


def opened(floor: Floor, count: int) -> list[Stream]:
    streams = []
    for _ in range(count):
        before = floor.connections.entered
        streams.append(floor.connect())
        floor.loop.until(lambda before=before: floor.connections.entered > before)  # type: ignore[misc]
    return streams


# Bodies of strangers ------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["announced", "chunked", "expected"])
def test_a_stranger_is_refused_before_any_of_its_body_is_read(how: str) -> None:
    with a_floor(lean=True) as floor:
        stream = floor.connect()
        framing = {
            "announced": "Content-Length: 4000\r\n",
            "chunked": "Transfer-Encoding: chunked\r\n",
            "expected": "Content-Length: 4000\r\nExpect: 100-continue\r\n",
        }[how]

        stream.send(request("/work", headers=JSON + framing))
        answer = stream.read_answer()

        answer.refused(401, "unauthorized")
        assert floor.connections.memory.held == 0
        assert (answer.headers.get("connection") == "close") == (how != "announced")


def test_a_connection_goes_on_behind_a_small_body_that_is_not_taken() -> None:
    with a_floor(lean=True) as floor:
        stream = floor.connect()
        refused = request("/work", b"1" * 4_000)

        stream.send(refused[:-3_000])
        stream.read_answer().refused(401, "unauthorized")
        stream.send(refused[-3_000:] + request(body=b"2"))

        assert stream.read_answer().ok()["body"] == "2"


def test_a_refusal_behind_another_request_waits_for_its_turn() -> None:
    with a_floor(lean=True) as floor:
        stream = floor.connect()
        stream.send(
            request("/wait/first", method="GET")
            + request("/work", b"1" * 4_000)
            + request(body=b"2")
        )
        floor.release("first")

        assert stream.read_answer().ok() == {"waited": "first"}
        stream.read_answer().refused(401, "unauthorized")
        assert stream.read_answer().ok()["body"] == "2"


def test_a_body_is_asked_for_only_when_its_sender_is_admitted() -> None:
    with a_floor(lean=True) as floor:
        stream = floor.connect()
        expecting = request("/work", b"[1]", headers=TOKEN + "Expect: 100-continue\r\n")
        stream.send(expecting[:-3])
        assert stream.read_until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        stream.send(expecting[-3:])
        assert stream.read_answer().ok()["body"] == "[1]"


# Memory -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def connections_in_memory() -> int:
    return sum(isinstance(thing, HttpConnection) for thing in gc.get_objects())


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        request("/echo", b"1" * 3_000)[:-1_000],
        request("/echo", headers=JSON + "Transfer-Encoding: chunked\r\n") + b"2\r\n11\r\n1\r\n",
        request("/echo", b"1" * 3_000),
        request("/echo", b"1" * 3_000) * 3 + request("/wait/a", b"2" * 3_000) * 2,
        request("/work", b"1" * 3_000),
        request("/work", headers=JSON + "Transfer-Encoding: chunked\r\n"),
        b"GET /echo HTTP/1.1\r\nX: ",
        b"garbage\r\n\r\n",
        request(method="GET", headers="Connection: Upgrade\r\nUpgrade: h2c\r\n"),
        request(
            "/socket",
            method="GET",
            headers="Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
        )
        + b"\x01\x84\0\0\0\0text",
    ],
    ids=lambda sent: sent[:40].decode().encode("unicode_escape").decode(),
)
def test_a_connection_that_is_gone_leaves_nothing_behind(sent: bytes) -> None:
    """Nothing waits for a collector of cycles, which seldom comes."""
    with a_floor(lean=True) as floor:
        with no_collector():
            before = connections_in_memory()
            stream = floor.connect()
            stream.send(sent)
            floor.loop.until(lambda: floor.connections.entered == 1)
            floor.settle()
            stream.close()
            floor.loop.until(lambda: not floor.connections.count)
            floor.settle()
            floor.waiting.clear()

            assert connections_in_memory() == before
        assert floor.connections.memory.held == 0


def test_an_idle_connection_keeps_nothing_of_its_last_request() -> None:
    with a_floor(lean=True) as floor, no_collector():
        stream = floor.connect()
        stream.send(request(body=b"7" * 4_000))
        stream.read_answer().ok()
        assert not any(isinstance(thing, Request) for thing in gc.get_objects())


def test_bodies_of_all_connections_have_one_bound(small: Floor) -> None:
    small.app.body_bytes_max = 600_000
    first = small.connect()
    first.send(request("/work", headers=f"{TOKEN}{JSON}Content-Length: 600000\r\n"))
    small.loop.until(lambda: small.connections.memory.held == 600_000)

    second = small.connect()
    second.send(request("/work", headers=f"{TOKEN}{JSON}Content-Length: 300000\r\n"))
    refused = second.read_answer()
    tiny = small.connect()
    tiny.send(request("/work", b"[1]", headers=TOKEN))

    refused.refused(503, "request_memory_full")
    assert refused.headers["retry-after"] == str(limits.RETRY_AFTER_SECONDS)
    assert tiny.read_answer().ok()["body"] == "[1]"
    first.close()
    small.loop.until(lambda: small.connections.memory.held == 0)


def test_heads_that_are_not_complete_count_until_they_are(small: Floor) -> None:
    stream = small.connect()
    whole = request(method="GET", headers=f"X-Long: {'a' * 1_000}\r\n")
    stream.send(whole[:-4])
    small.loop.until(lambda: small.connections.memory.held >= 1_000)

    stream.send(whole[-4:])

    stream.read_answer().ok()
    assert small.connections.memory.held == 0


def test_chunked_bodies_count_as_they_grow(small: Floor) -> None:
    small.app.body_bytes_max = 2_000_000
    stream = small.connect()
    stream.send(request("/work", headers=f"{TOKEN}{JSON}Transfer-Encoding: chunked\r\n"))
    for _ in range(9):
        stream.send(b"186a0\r\n%b\r\n" % (b"1" * 100_000))

    stream.read_answer().refused(503, "request_memory_full")
    assert small.connections.memory.held == 0


def test_an_answered_request_counts_no_longer_and_one_in_hand_does(small: Floor) -> None:
    small.app.body_bytes_max = 10_000
    stream = small.connect()
    stream.send(request("/wait/a", b"1" * 5_000))
    small.loop.until(lambda: "a" in small.waiting)
    assert small.connections.memory.held == 5_000
    small.release("a")
    stream.read_answer().ok()
    assert small.connections.memory.held == 0


def test_strangers_take_half_of_the_memory_and_large_bodies_seven_eighths() -> None:
    memory = Memory(1_600_000)
    assert not memory.reserve(800_001, is_known=False)
    assert memory.reserve(800_000, is_known=False)
    assert not memory.reserve(1, is_known=False)
    assert not memory.reserve(600_001, is_known=True)
    assert memory.reserve(600_000, is_known=True)
    assert not memory.reserve(SMALL_BYTES_MAX + 1, is_known=True)
    assert not memory.reserve(1, is_known=True, total=SMALL_BYTES_MAX + 1)
    assert memory.reserve(SMALL_BYTES_MAX, is_known=True)
    assert memory.refused == 5
    memory.release(memory.held)
    assert memory.reserve(800_000, is_known=False)


# Connections --------------------------------------------------------------------------------------


def test_the_oldest_idle_stranger_makes_room(small: Floor) -> None:
    worker = known(small)
    strangers = opened(small, 2)

    (third,) = opened(small, 1)

    assert strangers[0].read_to_end() == b""
    for stream in (strangers[1], third):
        stream.send(request(body=b"1"))
        stream.read_answer().ok()
    worker.send(request("/work", b"2", headers=TOKEN))
    worker.read_answer().ok()


def test_who_is_served_without_a_credential_stays_a_stranger(small: Floor) -> None:
    first = small.connect()
    first.send(request(body=b"1"))
    first.read_answer().ok()
    opened(small, 2)

    opened(small, 1)

    assert first.read_to_end() == b""


def test_beyond_the_bound_only_health_and_known_clients_are_served() -> None:
    with a_floor(lean=True, limits=ConnectionLimits(2, 2)) as floor:
        held = [known(floor, name) for name in ("a", "b")]
        for headers, path, method in (
            ("", "/health", "GET"),
            (TOKEN, "/work", "POST"),
        ):
            stream = floor.connect()
            stream.send(request(path, method=method, headers=headers))
            answer = stream.read_answer()
            assert answer.status == 200
            assert answer.headers["connection"] == "close"
            assert stream.read_to_end() == b""

        stream = floor.connect()
        stream.send(request("/posted", b"1"))
        answer = stream.read_answer()
        answer.refused(503, "too_many_connections")
        assert answer.headers["retry-after"] == str(limits.RETRY_AFTER_SECONDS)
        for name, parked in zip("ab", held, strict=True):
            floor.release(name)
            parked.read_answer().ok()


def test_far_beyond_the_bound_connections_are_refused_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with a_floor(lean=True, limits=ConnectionLimits(2, 2)) as floor:
        for name in ("a", "b"):
            known(floor, name)
        for number in range(8):
            stream = floor.connect()
            stream.send(request(f"/wait/x{number}", method="GET"))
            floor.loop.until(lambda number=number: f"x{number}" in floor.waiting)  # type: ignore[misc]

        assert floor.connections.count == 10
        one_more = floor.connect()

        assert b"503 Service Unavailable" in one_more.read_to_end()
        floor.check_all()
        assert "1 connections or requests refused" in caplog.text


def test_one_address_has_a_bound_of_its_own(small: Floor) -> None:
    """Three from here; the fourth place is for others."""
    opened(small, 3)
    (fourth,) = opened(small, 1)
    assert len(small.connections.open) == 3
    fourth.send(request(body=b"1"))
    fourth.read_answer().ok()


def test_places_are_given_back(small: Floor) -> None:
    for _ in range(3):
        streams = opened(small, 3)
        for stream in streams:
            stream.send(request(body=b"1"))
            stream.read_answer().ok()
            stream.close()
        small.loop.until(lambda: not small.connections.count)
    assert small.connections._by_peer == {}


def test_a_socket_takes_a_place_until_it_is_closed(small: Floor) -> None:
    key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    stream = small.connect()
    stream.send(
        request(
            "/socket", method="GET", headers=f"Connection: Upgrade\r\nUpgrade: websocket\r\n{key}"
        )
    )
    stream.read_until(b"\r\n\r\n")
    assert small.connections.count == 1
    assert small.connections._by_peer == {"127.0.0.1": 1}

    stream.close()

    small.loop.until(lambda: not small.connections.count)
    assert small.connections._by_peer == {}
