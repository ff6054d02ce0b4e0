"""HTTP/1.1 as bytes on a socket: what clients, proxies and strangers send."""

import asyncio
import json
import logging
import time
import zlib

import pytest

from perdure.web.limits import HEAD, IDLE, PIPELINED_MAX
from tests.web.floor import BODY_BYTES_MAX, LARGE_BYTES, Floor, request

CHUNKED = "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n"


def test_a_connection_serves_one_request_after_another(floor: Floor) -> None:
    stream = floor.connect()

    for number in range(3):
        stream.send(request(body=b"%d" % number))
        answer = stream.read_answer()
        assert answer.ok()["body"] == str(number)
        assert "connection" not in answer.headers


def test_answers_of_every_size_have_their_length(floor: Floor) -> None:
    stream = floor.connect()
    sizes = list[int]()

    for number in range(3_800, 4_096):
        stream.send(request(body=b"x" * number))
        answer = stream.read_answer()
        assert answer.ok()["body"] == "x" * number
        sizes.append(int(answer.headers["content-length"]))

    assert sizes == list(range(sizes[0], sizes[0] + 296))
    assert sizes[0] < 4_096 < sizes[-1], "lengths up to 4,095 are prepared, others are not"


def test_a_handler_may_let_the_loop_turn(floor: Floor) -> None:
    stream = floor.connect()
    stream.send(request("/turning", method="GET"))
    assert stream.read_answer().ok() == {}


def test_only_a_silent_connection_is_swept_away(floor: Floor) -> None:
    silent, busy, talking = floor.connect(), floor.connect(), floor.connect()
    busy.send(request("/wait/long", method="GET"))
    for stream in (silent, talking):
        stream.send(request(body=b"1"))
        stream.read_answer().ok()
    floor.loop.until(lambda: "long" in floor.waiting)

    for _ in range(IDLE.sweeps):
        floor.connections.check_all()
    talking.send(request(body=b"2"))
    talking.read_answer().ok()
    floor.connections.check_all()

    assert silent.read_to_end() == b""
    talking.send(request(body=b"3"))
    assert talking.read_answer().ok()["body"] == "3"
    floor.release("long")
    assert busy.read_answer().ok() == {"waited": "long"}


def test_pipelined_requests_are_answered_in_their_order(floor: Floor) -> None:
    stream = floor.connect()

    stream.send(request("/wait/first", method="GET") + request(body=b"2") + request(body=b"3"))
    floor.loop.until(lambda: "first" in floor.waiting)
    assert floor.done == [], "the second request was taken up before the first was answered"
    floor.release("first")

    assert stream.read_answer().ok() == {"waited": "first"}
    assert [stream.read_answer().ok()["body"] for _ in range(2)] == ["2", "3"]


def test_more_pipelined_requests_than_the_bound_end_the_connection(floor: Floor) -> None:
    stream = floor.connect()

    stream.send(request("/wait/first", method="GET") + request(body=b"x") * (PIPELINED_MAX + 1))

    assert stream.read_to_end() == b""
    assert floor.gone == ["first"]
    assert "x" not in floor.done


def test_a_request_may_arrive_byte_by_byte(floor: Floor) -> None:
    stream = floor.connect()

    for byte in request("/echo?a=1&b=", b'{"a": 1}', headers="X-Name: value\r\n"):
        stream.send(bytes([byte]))

    told = stream.read_answer().ok()
    assert told["query"] == {"a": "1", "b": ""}
    assert told["headers"]["x-name"] == "value"
    assert told["body"] == '{"a": 1}'


def test_a_head_request_gets_the_head_of_an_answer_and_no_body(floor: Floor) -> None:
    stream = floor.connect()

    stream.send(request(method="HEAD"))
    answer = stream.read_answer(has_body=False)
    stream.send(request(method="GET"))

    assert answer.status == 200
    assert int(answer.headers["content-length"]) > 0
    assert stream.read_answer().ok()["method"] == "GET", "the stream is out of step"


def test_expect_100_continue_is_answered_before_the_body_is_sent(floor: Floor) -> None:
    stream = floor.connect()
    whole = request(body=b"[1]", headers="Expect: 100-continue\r\n")

    stream.send(whole[:-3])
    assert stream.read_until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    stream.send(whole[-3:])

    assert stream.read_answer().ok()["body"] == "[1]"


def test_a_body_that_is_announced_too_large_is_refused_before_it_is_sent(floor: Floor) -> None:
    stream = floor.connect()

    stream.send(
        f"POST /echo HTTP/1.1\r\nHost: floor\r\nContent-Type: application/json\r\n"
        f"Expect: 100-continue\r\nContent-Length: {BODY_BYTES_MAX + 1}\r\n\r\n".encode()
    )
    answer = stream.read_answer()

    assert answer.refused(413, "payload_too_large")["limit"] == BODY_BYTES_MAX
    assert answer.headers["connection"] == "close"
    assert stream.read_to_end() == b""
    assert floor.done == []


def test_a_body_of_exactly_the_limit_is_taken(floor: Floor) -> None:
    stream = floor.connect()

    stream.send(request(body=b"1" * BODY_BYTES_MAX))

    assert len(stream.read_answer().ok()["body"]) == BODY_BYTES_MAX


def test_a_chunked_body_is_put_together(floor: Floor) -> None:
    stream = floor.connect()

    stream.send(request(headers=CHUNKED) + b"2\r\n[1\r\n1\r\n]\r\n0\r\n\r\n")

    assert stream.read_answer().ok()["body"] == "[1]"


@pytest.mark.parametrize("pieces", [1, 2, 100])
def test_a_chunked_body_is_refused_when_it_grows_too_large(floor: Floor, pieces: int) -> None:
    stream = floor.connect()
    size = BODY_BYTES_MAX // pieces + 1

    stream.send(request(headers=CHUNKED))
    for _ in range(pieces):
        stream.send(b"%x\r\n%s\r\n" % (size, b"1" * size))
    stream.send(b"0\r\n\r\n")
    answer = stream.read_answer()

    answer.refused(413, "payload_too_large")
    assert floor.done == []


def test_a_body_in_many_small_pieces_costs_no_more_than_its_size(floor: Floor) -> None:
    """Otherwise a stranger keeps the whole server busy with two megabytes of single bytes."""

    async def cost(pieces: int) -> float:
        connection = floor.connections.protocol()
        connection.connection_made(asyncio.Transport())
        connection.data_received(request(headers=CHUNKED))
        began = time.process_time()
        connection.data_received(b"1\r\n1\r\n" * pieces)
        took = time.process_time() - began
        floor.connections.open.discard(connection)
        return took

    few = min(floor.loop.run(cost(1_000)) for _ in range(5))
    many = min(floor.loop.run(cost(4_000)) for _ in range(5))

    assert many < 9 * few


def test_a_body_needs_a_media_type_of_json(floor: Floor) -> None:
    stream = floor.connect()
    for media_type, status in (
        ("application/json", 200),
        ("Application/JSON; charset=utf-8", 200),
        ("application/vnd.x+json", 200),
        ("text/plain", 415),
        ("application/jsonp", 415),
        ("", 415),
    ):
        header = f"Content-Type: {media_type}\r\n" if media_type else ""
        stream.send(
            f"POST /echo HTTP/1.1\r\nHost: floor\r\n{header}Content-Length: 2\r\n\r\n{{}}".encode()
        )
        answer = stream.read_answer()
        assert answer.status == status, media_type
        if status == 415:
            body = answer.refused(415, "unsupported_media_type")
            assert body["accepted_content_types"] == ["application/json", "application/*+json"]
    assert len(floor.done) == 3


def test_an_empty_body_needs_no_media_type(floor: Floor) -> None:
    stream = floor.connect()
    stream.send(b"POST /echo HTTP/1.1\r\nHost: floor\r\nContent-Length: 0\r\n\r\n")
    assert stream.read_answer().ok()["body"] == ""


@pytest.mark.parametrize(
    "opening",
    [
        b"POST /echo HTTP/1.1\r\nHost: floor\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        b"POST /echo HTTP/1.0\r\nContent-Length: 0\r\n\r\n",
    ],
    ids=["asked to close", "HTTP/1.0"],
)
def test_a_connection_is_closed_after_its_last_answer(floor: Floor, opening: bytes) -> None:
    stream = floor.connect()

    stream.send(opening)
    answer = stream.read_answer()

    answer.ok()
    assert answer.headers["connection"] == "close"
    assert stream.read_to_end() == b""


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"hello\r\n\r\n",
        b"get /echo HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /echo HTTP/1.1\r\nHost: x\r\n folded: line\r\n\r\n",
        b"GET /echo HTTP/1.1\r\nHost: x\r\nNul: \x00\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\na",
        b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"CONNECT example.test:443 HTTP/1.1\r\nHost: example.test:443\r\n\r\n",
    ],
    ids=lambda garbage: garbage[:12].decode("latin-1").encode("unicode_escape").decode(),
)
def test_what_is_not_http_is_refused_and_the_connection_closed(
    floor: Floor, garbage: bytes
) -> None:
    stream = floor.connect()

    stream.send(garbage)
    answer = stream.read_answer()

    answer.refused(400, "malformed_http")
    assert answer.headers["connection"] == "close"
    assert stream.read_to_end() == b""
    assert floor.done == []


def test_garbage_behind_a_request_does_not_take_its_answer_away(floor: Floor) -> None:
    """Otherwise a client is told 400 about a request that was carried out."""
    stream = floor.connect()

    stream.send(request("/echo", b"[1]") + b"\x00garbage\r\n\r\n")

    assert stream.read_answer().ok()["body"] == "[1]"


def test_a_head_larger_than_the_bound_is_refused_and_not_acted_on(floor: Floor) -> None:
    stream = floor.connect()

    stream.send(request(body=b"[1]", headers=f"X-Large: {'a' * HEAD.bytes_max}\r\n"))
    answer = stream.read_answer()

    answer.refused(431, "headers_too_large")
    assert answer.headers["connection"] == "close"
    assert stream.read_to_end() == b""
    assert floor.done == []


def test_a_target_larger_than_the_bound_is_refused_and_not_acted_on(floor: Floor) -> None:
    stream = floor.connect()

    stream.send(request(f"/echo?a={'a' * HEAD.bytes_max}", method="GET"))

    stream.read_answer().refused(431, "headers_too_large")
    assert stream.read_to_end() == b""
    assert floor.done == []


@pytest.mark.parametrize("opening", ["X-Endless: ", "X-One: 1\r\n" * 100 + "X-Endless: "])
def test_a_head_that_never_ends_is_refused_before_it_has_filled_the_memory(
    floor: Floor, opening: str
) -> None:
    stream = floor.connect()

    stream.send(f"POST /echo HTTP/1.1\r\nHost: floor\r\n{opening}".encode())
    for _ in range(HEAD.bytes_max // 1_024 + 1):
        stream.send(b"a" * 1_024)

    stream.read_answer().refused(431, "headers_too_large")
    assert floor.done == []


def test_a_long_body_does_not_count_against_the_head_behind_it(floor: Floor) -> None:
    stream = floor.connect()
    long = request(body=b"x" * BODY_BYTES_MAX)
    whole = long * (HEAD.bytes_max // len(long) + 1) + request(headers="X-Name: value\r\n")

    stream.send(request("/wait/first", method="GET"))
    floor.release("first")
    stream.read_answer().ok()
    for start in range(0, len(whole), 10_000):
        stream.send(whole[start : start + 10_000])

    answers = [stream.read_answer().ok() for _ in range(HEAD.bytes_max // len(long) + 2)]
    assert answers[-1]["headers"]["x-name"] == "value"


def test_trailers_are_not_headers(floor: Floor) -> None:
    """A proxy checks headers; what follows the body has passed it unseen."""
    stream = floor.connect()

    stream.send(request(headers=CHUNKED) + b"1\r\n1\r\n0\r\nAuthorization: Bearer late\r\n\r\n")

    assert "authorization" not in stream.read_answer().ok()["headers"]


def test_an_upgrade_is_refused_and_not_acted_on(floor: Floor) -> None:
    stream = floor.connect()

    stream.send(request(headers="Connection: Upgrade\r\nUpgrade: websocket\r\n"))
    answer = stream.read_answer()

    answer.refused(400, "upgrade_not_supported")
    assert answer.headers["connection"] == "close"
    assert stream.read_to_end() == b""
    assert floor.done == []


def test_an_offer_of_http_2_is_passed_over(floor: Floor) -> None:
    """Java's own client makes it with its first request and expects HTTP/1.1 to go on."""
    stream = floor.connect()

    offer = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    stream.send(request(body=b"[1]", headers=offer))

    assert stream.read_answer().ok()["body"] == "[1]"


def test_a_target_may_name_scheme_and_host(floor: Floor) -> None:
    """As proxies write it; RFC 9112 asks every server to accept it."""
    stream = floor.connect()
    stream.send(request("http://floor/echo?a=1", method="GET"))
    assert stream.read_answer().ok()["query"] == {"a": "1"}


def test_a_body_is_asked_for_only_when_its_request_is_next(floor: Floor) -> None:
    """Answers come in the order of requests, interim ones too."""
    stream = floor.connect()
    expecting = request(body=b"[1]", headers="Expect: 100-continue\r\n")

    stream.send(request("/wait/first", method="GET") + expecting[:-3])
    floor.release("first")

    assert stream.read_answer().ok() == {"waited": "first"}


@pytest.mark.parametrize("path", ["/broken", "/unspeakable"])
def test_a_broken_handler_is_a_500_that_tells_nothing_and_is_logged(
    floor: Floor, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    """So is a refusal that cannot be put into words: nobody is left waiting."""
    stream = floor.connect()

    with caplog.at_level(logging.ERROR):
        stream.send(request(path, method="GET"))
        answer = stream.read_answer()

    answer.refused(500, "server_error")
    assert b"secret" not in answer.content
    assert f"GET {path} failed with an unexpected error" in caplog.text
    stream.send(request(body=b"1"))
    stream.read_answer().ok()


def test_a_handler_that_waits_is_told_when_its_client_leaves(floor: Floor) -> None:
    stream = floor.connect()
    stream.send(request("/wait/poll", method="GET"))
    floor.loop.until(lambda: "poll" in floor.waiting)

    stream.close()

    floor.loop.until(lambda: floor.gone == ["poll"])


def test_a_client_that_left_before_its_handler_began_to_watch_is_noticed(floor: Floor) -> None:
    stream = floor.connect()
    stream.send(request("/wait/first", method="GET") + request("/wait/second", method="GET"))
    floor.loop.until(lambda: "first" in floor.waiting)

    stream.close()

    floor.loop.until(lambda: floor.gone == ["first"])
    floor.loop.until(lambda: not floor.connections.open)
    assert "second" not in floor.waiting, "nobody is there to wait for it"


def test_large_answers_wait_for_a_slow_reader(floor: Floor) -> None:
    stream = floor.connect()

    stream.send(request("/large", method="GET") * PIPELINED_MAX)

    for _ in range(PIPELINED_MAX):
        assert len(stream.read_answer().content) == LARGE_BYTES + 2


@pytest.mark.parametrize(
    ("accept", "encoding"),
    [
        ("gzip, deflate", "gzip"),
        ("deflate", "deflate"),
        ("gzip;q=0.2, deflate;q=0.9", "deflate"),
        ("GZIP; q=0.5", "gzip"),
        ("*", "gzip"),
        ("gzip;q=0, *;q=0.1", "deflate"),
        ("gzip;q=0", None),
        ("gzip;q=nonsense", None),
        ("br, identity", None),
        ("", None),
    ],
)
def test_large_answers_are_compressed_as_the_client_prefers(
    floor: Floor, accept: str, encoding: str | None
) -> None:
    stream = floor.connect()

    stream.send(request("/large", method="GET", headers=f"Accept-Encoding: {accept}\r\n"))
    answer = stream.read_answer()

    assert answer.status == 200
    assert answer.headers.get("content-encoding") == encoding
    if encoding is None:
        assert len(answer.content) == LARGE_BYTES + 2
        return
    assert answer.headers["vary"].lower() == "accept-encoding"
    assert len(answer.content) < LARGE_BYTES // 10
    # `deflate` is raw deflate: no zlib header.
    window = 31 if encoding == "gzip" else -15
    assert len(json.loads(zlib.decompress(answer.content, window))) == LARGE_BYTES


def test_small_answers_are_not_compressed(floor: Floor) -> None:
    stream = floor.connect()
    stream.send(request("/wait/x", method="GET", headers="Accept-Encoding: gzip\r\n"))
    floor.release("x")
    assert stream.read_answer().ok() == {"waited": "x"}


def test_draining_closes_idle_connections_and_lets_the_others_finish(floor: Floor) -> None:
    idle, busy = floor.connect(), floor.connect()
    idle.send(request(body=b"1"))
    idle.read_answer().ok()
    busy.send(request("/wait/last", method="GET"))
    floor.loop.until(lambda: "last" in floor.waiting)

    async def drain() -> None:
        draining = asyncio.ensure_future(floor.connections.drain(20))
        await asyncio.sleep(0)
        floor.waiting["last"].set_result(None)
        await draining

    floor.loop.run(drain())

    assert idle.read_to_end() == b""
    answer = busy.read_answer()
    assert answer.ok() == {"waited": "last"}
    assert answer.headers["connection"] == "close"
    assert busy.read_to_end() == b""


def test_while_it_drains_a_server_tells_its_health_and_begins_nothing_new(floor: Floor) -> None:
    busy, early = floor.connect(), floor.connect()
    busy.send(request("/wait/last", method="GET"))
    floor.loop.until(lambda: "last" in floor.waiting)
    early.send(b"POST /work HTTP/1.1\r\n")
    floor.connections.is_draining = True

    asking, working = floor.connect(), floor.connect()
    asking.send(request("/health", method="GET"))
    answer = asking.read_answer()
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    authorization = "Authorization: Bearer s3cret\r\n"
    working.send(request("/work", body=b"1", headers=authorization))
    early.send(request("/work", body=b"1", headers=authorization).partition(b"\r\n")[2])
    for stream in (working, early):
        answer = stream.read_answer()
        answer.refused(503, "server_stopping")
        assert answer.headers["retry-after"] == "5"
        assert answer.headers["connection"] == "close"
    assert floor.done == []
    floor.waiting["last"].set_result(None)
    assert busy.read_answer().ok() == {"waited": "last"}


def test_draining_does_not_wait_for_ever(floor: Floor) -> None:
    stuck = floor.connect()
    stuck.send(request("/wait/stuck", method="GET"))
    floor.loop.until(lambda: "stuck" in floor.waiting)

    floor.loop.run(floor.connections.drain(0.01))

    assert stuck.read_to_end() == b""
    assert floor.gone == ["stuck"]
