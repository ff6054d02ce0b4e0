"""Heads that come again: whatever is recognised is what the parser would have read."""

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.web.heads import KnownHeads
from perdure.web.message import Request

BODY_BYTES_MAX = 64
HEADERS = b"Host: here\r\nContent-Type: application/json\r\nX-Namespace: a\r\n"


def a_request(
    body: bytes = b"{}", *, path: bytes = b"/poll", headers: bytes = HEADERS, end: bytes = b"\r\n"
) -> bytes:
    head = b"POST %b HTTP/1.1\r\n%bContent-Length: %d\r\n" % (path, headers, len(body))
    return head + end + body


class Reading:
    """What the parser makes of some bytes."""

    def __init__(self, data: bytes) -> None:
        self.headers: dict[bytes, bytes] = {}
        self.target = self.body = b""
        self.ends = 0
        self.is_whole = True
        self.keep_alive = False
        self.method = ""
        self._parser = httptools.HttpRequestParser(self)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.is_whole = False
        self.is_whole = self.is_whole and self.ends == 1

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self.method = self._parser.get_method().decode()
        self.keep_alive = self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.ends += 1

    def request(self) -> Request:
        request = Request(self.method, self.target, self.headers, keep_alive=self.keep_alive)
        request.body = self.body
        return request


def learned(*datas: bytes) -> KnownHeads:
    heads = KnownHeads(BODY_BYTES_MAX)
    for data in datas:
        reading = Reading(data)
        if reading.is_whole:
            heads.learn(data, reading.request())
    return heads


def test_a_head_is_recognised_when_it_comes_again() -> None:
    found = learned(a_request(b"{}")).recognise(a_request(b"[]", path=b"/tasks/01-w1/complete"))

    assert found is not None
    assert (found.method, found.path, found.body) == ("POST", b"/tasks/01-w1/complete", b"[]")
    assert found.headers[b"x-namespace"] == b"a"
    assert found.keep_alive


@pytest.mark.parametrize(
    "data",
    [
        a_request(b""),
        a_request(b"x" * (BODY_BYTES_MAX + 1)),
        a_request(headers=HEADERS + b"Connection: close\r\n"),
        a_request(headers=HEADERS + b"Expect: 100-continue\r\n"),
        a_request(headers=HEADERS + b"traceparent: 00-1-2-01\r\n"),
        a_request(headers=HEADERS + b"X-Long: " + b"x" * 4096 + b"\r\n"),
        a_request(path=b"/poll?namespace=b"),
        a_request(path=b"/a%2Fb"),
        a_request(headers=HEADERS.replace(b"\r\n", b"\n"), end=b"\n"),
        a_request().replace(b"POST", b"GET"),
        a_request().replace(b"HTTP/1.1", b"HTTP/1.0"),
        a_request() + a_request(),
    ],
)
def test_what_is_less_plain_is_left_to_the_parser(data: bytes) -> None:
    assert learned(data).recognise(data) is None


@pytest.mark.parametrize("cut", range(1, len(a_request())))
def test_a_request_in_two_pieces_is_left_to_the_parser(cut: int) -> None:
    heads = learned(a_request())

    assert heads.recognise(a_request()[:cut]) is None
    assert heads.recognise(a_request()[cut:]) is None


def test_no_more_heads_are_kept_than_there_is_room_for() -> None:
    heads = KnownHeads(BODY_BYTES_MAX)
    for number in range(3_000):
        data = a_request(headers=b"X-Number: %d\r\n" % number)
        heads.learn(data, Reading(data).request())

    assert len(heads) <= 1024


_LINES = (
    b"Host: here",
    b"Content-Length: 2",
    b"Content-Length: 7",
    b"content-length : 2",
    b"Transfer-Encoding: chunked",
    b"Connection: close",
    b"Connection: keep-alive",
    b"Upgrade: h2c",
    b"X-Fold: a\r\n b",
    b" folded",
    b"X: \x00",
    b"",
)
_PIECES = st.lists(st.sampled_from(_LINES), max_size=4)
_DATA = st.builds(
    lambda line, pieces, gap, body: line + gap.join((*pieces, b"")) + gap + body,
    st.sampled_from([b"POST /a HTTP/1.1\r\n", b"POST /b HTTP/1.1\r\n", b"GET /a HTTP/1.1\r\n"]),
    _PIECES,
    st.sampled_from([b"\r\n", b"\n"]),
    st.sampled_from([b"", b"{}", b"\r\n\r\n{}", b"2\r\n{}\r\n0\r\n\r\n", b"{}POST / HTTP/1.1"]),
)


@given(known=st.lists(_DATA, max_size=6), data=_DATA)
def test_whatever_is_recognised_is_what_the_parser_reads(known: list[bytes], data: bytes) -> None:
    found = learned(*known, data).recognise(data)

    if found is not None:
        read = Reading(data)
        assert read.is_whole
        assert (found.method, found.path, found.body) == (read.method, read.target, read.body)
        assert (found.headers, found.keep_alive) == (read.headers, read.keep_alive)
