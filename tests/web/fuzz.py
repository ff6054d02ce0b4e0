"""Mutated traffic against the HTTP and WebSocket readers, with other parsers as oracles.

    python -m tests.web.fuzz [--minutes 10] [--seed N]

What our server takes for a request or a message must be what h11 or wsproto takes it for. What it
refuses and they do not must be refused for a reason that stands in `STRICTER`. Ends with 1 at the
first difference, and prints the seed that shows it again.
"""

import argparse
import asyncio
import random
import re
import resource
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import h11
from wsproto import ConnectionType
from wsproto.connection import Connection as Oracle
from wsproto.events import BytesMessage, CloseConnection, Ping, Pong, TextMessage
from wsproto.utilities import RemoteProtocolError

from perdure.web import frames, limits
from perdure.web.app import Application
from perdure.web.auth import NoAuthentication
from perdure.web.connection import HttpConnection
from perdure.web.message import Request, Response
from perdure.web.routing import PUBLIC, Route, Router
from perdure.web.server import Connections
from perdure.web.websocket import WebSocket
from tests.web.floor import Listening, PlainSurface

BODY_BYTES_MAX = 4_096
MESSAGE_BYTES_MAX = 4_096
GROWTH_BYTES_MAX = 32_000_000

REQUESTS = (
    b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /a?b=c HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    b"HEAD /a HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n",
    b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
    b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\nExpect: 100-continue\r\n\r\n0123456789",
    b"PUT /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3\r\nabc\r\n1;e=f\r\nd\r\n0\r\n\r\n",
    b"POST /a HTTP/1.1\r\nhost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"1\r\na\r\n0\r\nX-T: v\r\n\r\n",
    b"POST /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 1\r\n\r\nz",
    b"GET /a HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
    b"DELETE http://x/a HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer t\r\nX-Namespace: n\r\n\r\n",
)
PIECES = (
    *(b"\r\n", b"\n", b"\r", b" ", b"\t", b":", b"\0", b"\x7f", b"\xff", b",", b";", b"\r\n\r\n"),
    *(
        b"Host: y\r\n",
        b"Content-Length: 1\r\n",
        b"Content-Length: +1\r\n",
        b"Content-Length: 1, 1\r\n",
    ),
    *(b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip, chunked\r\n"),
    *(b"Transfer-Encoding:\x0bchunked\r\n", b"Transfer-Encoding : chunked\r\n", b" folded\r\n"),
    *(b"HTTP/1.0", b"HTTP/1.1", b"HTTP/2.0", b"HTTP/0.9", b"Connection: close\r\n"),
    *(
        b"Upgrade: websocket\r\nConnection: Upgrade\r\n",
        b"0\r\n\r\n",
        b"ffffffff\r\n",
        b"-1",
        b"0x1",
    ),
    *(b"Expect: 100-continue\r\n", b"X: " + b"a" * 4_000 + b"\r\n", b"99999999999999999999"),
)


class Difference(AssertionError):
    """Two readers do not agree, or a promise is broken."""


class Read(NamedTuple):
    """One request, as a reader understood it."""

    method: str
    target: bytes
    headers: dict[bytes, bytes]
    body: bytes


class Taken(asyncio.Transport):
    """What a connection writes, and whether it goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.is_closed = False
        self.has_ended = False

    def write(self, data: bytes) -> None:  # type: ignore[override]
        self.written += data

    def write_eof(self) -> None:
        self.has_ended = True

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.is_closed

    def get_write_buffer_size(self) -> int:
        return 0


class AnyRoute(Router):
    """Every path is the same route, whose handler notes what it is asked."""

    def __init__(self, route: Route) -> None:
        super().__init__([route])
        self._route = route

    def find(self, request: Request) -> Route:
        return self._route


class AnyMedia(PlainSurface):
    takes_any_media = True


class Server:
    """The readers under test, without any socket."""

    def __init__(self) -> None:
        self.requests: list[Read] = []
        surface = AnyMedia()
        route = Route("GET", "/", PUBLIC, surface, self.note, lean=True)
        self.app = Application(
            AnyRoute(route),
            NoAuthentication(),
            surface_of=lambda path: surface,
            translate=lambda error: None,
            body_bytes_max=BODY_BYTES_MAX,
            compression_bytes_min=None,
        )
        self.connections = Connections(self.app)

    async def note(self, request: Request) -> Response:
        target = request.path + (b"?" + request.query_string if request.query_string else b"")
        self.requests.append(Read(request.method, target, dict(request.headers), request.body))
        return Response(200, b"{}")

    async def read(self, parts: list[bytes]) -> tuple[list[Read], list[int]]:
        """What is made of some traffic, and the statuses of the answers."""
        self.requests = []
        transport, connection = Taken(), HttpConnection(self.connections)
        connection.connection_made(transport)
        for part in parts:
            if not transport.is_closed:
                connection.data_received(part)
        is_owed = not transport.is_closed and connection.eof_received()
        self.connections.outbox.flush()
        if is_owed and not transport.is_closed:
            raise Difference("a request was never answered")
        connection.connection_lost(None)
        if self.connections.memory.held or self.connections.open or self.connections.answering:
            raise Difference("a connection that is gone left something behind")
        return self.requests, statuses(bytes(transport.written))


def statuses(written: bytes) -> list[int]:
    """The final statuses of answers, one after the other."""
    found = []
    while written:
        head, _, written = written.partition(b"\r\n\r\n")
        status = int(head[9:12])
        if status == 100:
            continue
        found.append(status)
        length = re.search(rb"content-length: (\d+)", head)
        assert length is not None
        if written[: int(length[1])].startswith(b"{"):
            written = written[int(length[1]) :]
    return found


def by_h11(data: bytes) -> tuple[list[Read], str]:
    """The requests that h11 reads, and why it stopped."""
    found: list[Read] = []
    # Empty lines before a request are passed over, as RFC 9112 asks.
    while data := data.lstrip(b"\r\n"):
        # One reader for each, since it keeps no connection of HTTP/1.0.
        reader = h11.Connection(h11.SERVER, max_incomplete_event_size=1_000_000)
        reader.receive_data(data)
        try:
            begun = reader.next_event()
            if not isinstance(begun, h11.Request):
                return found, "incomplete"
            body = b""
            while not isinstance(event := reader.next_event(), h11.EndOfMessage):
                if not isinstance(event, h11.Data):
                    return found, "incomplete"
                body += bytes(event.data)
        except h11.RemoteProtocolError as error:
            return found, str(error)
        headers: dict[bytes, bytes] = {}
        for name, value in begun.headers:
            headers[name] = headers[name] + b", " + value if name in headers else value
        found.append(Read(begun.method.decode("latin-1"), begun.target, headers, body))
        options = {o.strip().lower() for o in headers.get(b"connection", b"").split(b",")}
        if b"close" in options or (begun.http_version < b"1.1" and b"keep-alive" not in options):
            return found, "closed"
        data = reader.trailing_data[0]
    return found, "the end"


KNOWN_METHODS = frozenset({"DELETE", "GET", "HEAD", "POST", "PUT", "OPTIONS", "TRACE", "PATCH"})
STRICTER: dict[str, Callable[[Read, bytes], bool]] = {
    "methods are those that the parser knows": lambda r, data: (
        not re.fullmatch(r"[A-Z-]+", r.method) or r.method not in KNOWN_METHODS
    ),
    "there is no proxy here": lambda r, data: r.method == "CONNECT",
    "host, authorization and content-type stand there once": lambda r, data: any(
        b", " in r.headers.get(name, b"") for name in (b"host", b"authorization", b"content-type")
    ),
    "content-length stands there once": lambda r, data: b"content-length" in r.headers,
    "transfer-encoding is chunked": lambda r, data: b"transfer-encoding" in r.headers,
    "bodies have a bound": lambda r, data: len(r.body) > BODY_BYTES_MAX,
    "a WebSocket has no body and nothing behind it": lambda r, data: b"upgrade" in r.headers,
    "targets are ASCII, and no other spaces": lambda r, data: (
        re.fullmatch(rb"[!-~]+", r.target) is None
    ),
    "targets are paths or URLs": lambda r, data: (
        re.match(rb"/|\*|https?://[\w.:\[\]-]+(/|\?|$)", r.target) is None
    ),
    "a trailer may end the connection": lambda r, data: (
        re.search(rb"\n0\r\n(.+\r\n)*(proxy-)?connection *:", data, re.IGNORECASE) is not None
    ),
    "HTTP is 1.0 or 1.1": lambda r, data: re.search(rb"HTTP/(?!1\.[01])", data) is not None,
    "lines end with CR LF": lambda r, data: re.search(rb"(?<!\r)\n|\r(?!\n)", data) is not None,
    "headers are not folded": lambda r, data: re.search(rb"\n[ \t]", data) is not None,
    "values have no control characters": lambda r, data: any(
        re.search(rb"[\0-\x08\x0a-\x1f\x7f]", value) for value in r.headers.values()
    ),
}
"""Why we may refuse what h11 accepts: by the request, or by the traffic that it came in."""
LOOSER = {
    "there may be several spaces around a target": re.compile(rb"[A-Z]  +[!-~]|[!-~]  +HTTP/"),
}
"""Why we may accept what h11 refuses, by the traffic. None of it moves the end of a request."""


def normal(read: Read) -> tuple[str, bytes, bytes, list[bytes | None]]:
    """What must be the same, however a parser tells it."""
    target = re.sub(rb"^https?://[^/]*", b"", read.target, flags=re.IGNORECASE) or b"/"
    path, _, query = target.partition(b"?")
    names = (b"host", b"authorization", b"x-namespace", b"expect")
    values = [read.headers.get(name) for name in names]
    return read.method, path + b"?" + query, read.body, [v and v.strip() for v in values]


def compare(data: bytes, ours: list[Read], answered: list[int]) -> None:
    """Our requests are those of h11, one by one, up to where one of us stops."""
    theirs, why = by_h11(data)
    if any(status >= 500 for status in answered):
        raise Difference(f"a {max(answered)} for {data!r}")
    for number, (mine, other) in enumerate(zip(ours, theirs, strict=False)):
        if normal(mine) != normal(other):
            raise Difference(f"request {number}: {mine} is not {other}")
    if len(ours) > len(theirs) and not any(odd.search(data) for odd in LOOSER.values()):
        raise Difference(f"h11 refuses ({why}) what we accept: {ours[len(theirs)]} in {data!r}")
    if len(ours) < len(theirs) and len(ours) <= limits.PIPELINED_MAX:
        refused = theirs[len(ours)]
        is_closed = ours and b"close" in ours[-1].headers.get(b"connection", b"").lower()
        if not is_closed and not any(holds(refused, data) for holds in STRICTER.values()):
            raise Difference(f"we refuse ({answered[-1:]}) what h11 accepts: {refused} in {data!r}")


def mutated(chance: random.Random, pieces: tuple[bytes, ...], whole: bytes) -> bytes:
    """Something like it: a few bytes changed, removed, repeated, or put in."""
    data = bytearray(whole)
    for _ in range(chance.choice((0, 1, 1, 1, 2, 3, 6))):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(6):
            case 0:
                data[at:at] = chance.choice(pieces)
            case 1:
                data[at : at + chance.randrange(1, 8)] = b""
            case 2 if data:
                data[at % len(data)] = chance.randrange(256)
            case 3 if data:
                data[at % len(data)] ^= 1 << chance.randrange(8)
            case 4:
                end = at + chance.randrange(1, 60)
                data[at:at] = data[at:end]
            case _:
                # Between two lines, where most of the meaning is.
                start = data.find(b"\n", at) + 1
                data[start:start] = chance.choice(pieces)
    return bytes(data)


def cut(chance: random.Random, data: bytes) -> list[bytes]:
    """The same in segments."""
    ends = sorted(chance.randrange(len(data) + 1) for _ in range(chance.choice((0, 0, 1, 2, 8))))
    starts = [0, *ends]
    return [data[a:b] for a, b in zip(starts, [*ends, len(data)], strict=True) if a < b]


async def try_http(chance: random.Random, server: Server) -> None:
    parts = [chance.choice(REQUESTS) for _ in range(chance.choice((1, 1, 2, 3)))]
    data = mutated(chance, PIECES, b"".join(parts))
    ours, answered = await server.read(cut(chance, data))
    compare(data, ours, answered)


# WebSockets ---------------------------------------------------------------------------------------


def masked(opcode: int, payload: bytes, *, final: bool = True, mask: bytes = b"\1\2\3\4") -> bytes:
    head = bytes(((0x80 if final else 0) | opcode,))
    if len(payload) < 126:
        head += bytes((0x80 | len(payload),))
    else:
        head += bytes((0x80 | 126,)) + len(payload).to_bytes(2)
    return head + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(payload))


FRAMES = (
    masked(1, b"text"),
    masked(2, b"\0\1\2"),
    masked(1, "caf\u00e9".encode()),
    masked(1, b"to", final=False) + masked(9, b"ping") + masked(0, b"gether"),
    masked(2, b"", final=False) + masked(0, b"", final=False) + masked(0, b"x"),
    masked(1, b"x" * 300),
    masked(9, b""),
    masked(10, b"pong"),
    masked(8, (1000).to_bytes(2) + b"bye"),
    masked(8, b""),
)
BYTES = (b"\x81", b"\x80", b"\x00", b"\x01", b"\x88", b"\x89", b"\xfe", b"\xff", b"\x7f" * 8)


def by_wsproto(parts: list[bytes]) -> tuple[list[bytes], str]:
    """The messages that wsproto reads, and what becomes of what follows."""
    reader = Oracle(ConnectionType.SERVER)
    found: list[bytes] = []
    message = b""
    try:
        for part in parts:
            reader.receive_data(part)
            for event in reader.events():
                if isinstance(event, TextMessage | BytesMessage):
                    data = event.data
                    message += data.encode() if isinstance(data, str) else bytes(data)
                    if event.message_finished:
                        found.append(message)
                        message = b""
                elif isinstance(event, CloseConnection):
                    # It looks into text as it comes in, and we when it is whole.
                    is_text = event.code == frames.NOT_UTF8
                    return found, "not UTF-8" if is_text else "closed"
                else:
                    assert isinstance(event, Ping | Pong)
    except RemoteProtocolError:
        return found, "closed"
    return found, "open"


async def try_websocket(chance: random.Random, server: Server) -> None:
    parts = [chance.choice(FRAMES) for _ in range(chance.choice((1, 2, 3, 5)))]
    data = mutated(chance, BYTES, b"".join(parts))
    segments = cut(chance, data)
    listening, transport = Listening(), Taken()
    socket = WebSocket(listening, bytes_max=MESSAGE_BYTES_MAX, ping_seconds=3_600)
    socket.memory = server.connections.memory
    socket.connection_made(transport)
    for segment in segments:
        if not transport.is_closed:
            socket.data_received(segment)
    socket.connection_lost(None)
    if server.connections.memory.held:
        raise Difference("a socket that is gone left something behind")
    theirs, end = by_wsproto(segments)
    if transport.is_closed and end == "open":
        # It reads the whole head of a frame before it judges the beginning.
        _, end = by_wsproto([*segments, bytes(14)])
    ours = listening.messages
    if frames.close_frame(frames.TOO_BIG)[2:] in transport.written:
        # wsproto has no bound.
        theirs = theirs[: len(ours)]
    elif transport.is_closed is (end == "open") and end != "not UTF-8":
        raise Difference(f"closed: {transport.is_closed}, by wsproto: {end}: {segments!r}")
    if ours != theirs:
        raise Difference(f"{ours} is not {theirs}: {segments!r}")


# Runs ---------------------------------------------------------------------------------------------


async def run(seed: int, goes_on: Callable[[int], bool]) -> int:
    """Try one thing after the other. Every case has a seed of its own, derived from the first."""
    server = Server()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    number = 0
    while goes_on(number):
        chance = random.Random(f"{seed}:{number}")
        attempt = try_websocket if number % 3 == 2 else try_http
        try:
            await attempt(chance, server)
        except Exception as error:
            raise Difference(f"seed {seed}, case {number}: {error!r}") from error
        number += 1
        if number % 1_000 == 0:
            await asyncio.sleep(0)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1_024
    if grown > GROWTH_BYTES_MAX:
        raise Difference(f"seed {seed}: memory grew by {grown} bytes in {number} cases")
    return number


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None)
    # The other options of `make torture` are not for us.
    options, _ = parser.parse_known_args()
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    print(f"fuzzing the web readers: seed {seed}", flush=True)
    end = time.monotonic() + options.minutes * 60
    try:
        cases = asyncio.run(run(seed, lambda number: time.monotonic() < end))
    except Difference as difference:
        print(difference)
        return 1
    print(f"  {cases} cases, no difference")
    return 0


if __name__ == "__main__":
    sys.exit(main())
