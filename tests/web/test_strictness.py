"""What a request must look like to be served: nothing that two readers could read differently."""

import socket

import pytest

from tests.web.floor import Floor, a_floor, request

CHUNKED = "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n"


@pytest.mark.parametrize(
    "head",
    [
        "GET /echo HTTP/1.1",
        "GET /echo HTTP/1.1\r\nHost: a\r\nHost: a",
        "GET /echo HTTP/1.1\r\nHost: a\r\nHost: b",
        "GET /echo HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b",
        "GET /echo HTTP/1.1\r\nHost: a\r\nContent-Type: a/b\r\ncontent-type: application/json",
        "GET /echo HTTP/2.0\r\nHost: a",
        "GET /echo HTTP/0.9\r\nHost: a",
        "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked",
        "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity",
        "POST /echo HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked",
        "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nContent-Length: 0",
    ],
)
def test_what_leaves_open_what_is_meant_is_refused(floor: Floor, head: str) -> None:
    stream = floor.connect()

    stream.send(f"{head}\r\n\r\n0\r\n\r\n".encode())
    answer = stream.read_answer()

    answer.refused(400, "malformed_http")
    assert answer.headers["connection"] == "close"
    assert stream.read_to_end() == b""
    assert floor.done == []


def test_a_head_of_http_1_0_needs_no_host(floor: Floor) -> None:
    stream = floor.connect()
    stream.send(b"GET /echo HTTP/1.0\r\n\r\n")
    stream.read_answer().ok()


def test_repeated_headers_of_lists_are_one_list(floor: Floor) -> None:
    stream = floor.connect()
    stream.send(request(method="GET", headers="X-Tag: a\r\nX-TAG: b\r\n"))
    assert stream.read_answer().ok()["headers"]["x-tag"] == "a, b"


def test_a_websocket_asks_for_its_upgrade_in_the_header_connection(floor: Floor) -> None:
    stream = floor.connect()
    key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"

    stream.send(request("/socket", method="GET", headers=f"Upgrade: websocket\r\n{key}"))

    stream.read_answer().refused(400, "upgrade_required")


def test_a_thousand_offers_of_http_2_in_one_segment_are_passed_over() -> None:
    """The reader started anew inside itself for each, until its stack was full."""
    with a_floor(lean=True) as floor:
        offer = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n"
        stream = floor.connect()

        stream.send(request(body=b"[1]", headers=offer) * 1_000)

        for _ in range(1_000):
            assert stream.read_answer().ok()["body"] == "[1]"


def test_an_offer_does_not_take_the_other_options_of_a_connection_away(floor: Floor) -> None:
    stream = floor.connect()
    stream.send(
        request(method="GET", headers="Connection: close, Upgrade\r\nUpgrade: h2c\r\n")
        + request(method="GET")
    )

    assert stream.read_answer().headers["connection"] == "close"
    assert stream.read_to_end() == b""


def test_a_client_that_has_closed_its_side_gets_its_answer() -> None:
    with a_floor(lean=True) as floor:
        stream = floor.connect()
        stream.send(request("/slow", method="GET"))
        floor.loop.until(lambda: "slow" in floor.waiting)

        stream.end()
        floor.loop.until(lambda: floor.ended == 1)
        floor.release("slow")

        answer = stream.read_answer()
        assert answer.ok() == {}
        assert answer.headers["connection"] == "close"
        assert stream.read_to_end() == b""


def test_a_client_that_has_closed_its_side_in_the_same_segment_gets_its_answer(
    floor: Floor,
) -> None:
    plain = socket.create_connection(("127.0.0.1", floor.port))
    plain.sendall(request(body=b"[1]"))
    plain.shutdown(socket.SHUT_WR)
    plain.setblocking(False)

    async def read() -> bytes:
        got = b""
        while more := await floor.loop.here.sock_recv(plain, 65_536):
            got += more
        return got

    assert b"HTTP/1.1 200 OK" in floor.loop.run(read())
    plain.close()


def test_a_parked_request_is_over_when_its_client_has_closed_its_side(floor: Floor) -> None:
    """Most are gone altogether; a task must not be leased to them."""
    stream = floor.connect()
    stream.send(request("/wait/poll", method="GET"))
    floor.loop.until(lambda: "poll" in floor.waiting)

    stream.end()

    floor.loop.until(lambda: floor.gone == ["poll"])
    assert stream.read_answer().ok() == {"waited": "poll"}
    assert stream.read_to_end() == b""


def test_head_is_answered_like_get_without_the_body(floor: Floor) -> None:
    stream = floor.connect()
    stream.send(request("/large", method="GET"))
    whole = stream.read_answer()

    stream.send(request("/large", method="HEAD") + request(method="GET"))
    head = stream.read_answer(has_body=False)

    assert (head.status, head.headers) == (whole.status, whole.headers)
    assert stream.read_answer().ok()["method"] == "GET", "the stream is out of step"


def test_head_of_a_stream_of_events_is_its_head_alone(floor: Floor) -> None:
    stream = floor.connect()
    stream.send(request("/events", method="HEAD"))
    assert stream.read_answer(has_body=False).headers["content-type"] == "text/event-stream"
    assert stream.read_to_end() == b""
    assert floor.done == []


def test_head_is_not_answered_where_get_is_not(floor: Floor) -> None:
    stream = floor.connect()
    stream.send(request("/posted", method="HEAD"))
    answer = stream.read_answer(has_body=False)
    assert (answer.status, answer.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize(
    "headers",
    [
        "Connection: Upgrade\r\nUpgrade: h2c",
        "Connection: keep-alive\r\nConnection: close",
        "Connection: keep-alive, close",
    ],
)
def test_a_connection_of_http_1_0_is_not_kept_by_an_offer_or_against_its_word(
    floor: Floor, headers: str
) -> None:
    stream = floor.connect()
    stream.send(f"GET /echo HTTP/1.0\r\n{headers}\r\n\r\n".encode() + request(method="GET"))

    assert stream.read_answer().headers["connection"] == "close"
    assert stream.read_to_end() == b""
    assert len(floor.done) == 1
