"""Heads that come again.

A worker sends the same headers with every request, at most with another length. What the parser
made of them is kept by their bytes, so that such a request needs no parser at all, and likewise
who was let in with them. Only the plainest requests are recognised: those that come in one piece,
alone, with a body and keep-alive.
"""

import re
from typing import NamedTuple

from perdure.web.message import Passes, Request

_KNOWN_MAX = 1024
_BLOCK_BYTES_MAX = 2048

_LINE = re.compile(rb"POST (/[0-9A-Za-z/_.-]*) HTTP/1\.1\r\n")
_JSON = b"application/json"
_NEVER_AGAIN = frozenset({b"traceparent"})
_UNUSUAL = frozenset({b"expect", b"transfer-encoding", b"upgrade"})


class _Known(NamedTuple):
    headers: dict[bytes, bytes]
    body_bytes: int
    passes: Passes | None
    """If they are of JSON, as nearly all are."""


class KnownHeads:
    """Blocks of headers, as they were sent, and what the parser read in them."""

    def __init__(self, body_bytes_max: int) -> None:
        self._body_bytes_max = body_bytes_max
        self._known: dict[bytes, _Known] = {}

    def __len__(self) -> int:
        return len(self._known)

    def recognise(self, data: bytes) -> Request | None:
        """The one request that these bytes are, if its headers were learned."""
        line = _LINE.match(data)
        if line is None:
            return None
        start = line.end()
        end = data.find(b"\r\n\r\n", start)
        known = self._known.get(data[start:end])
        if known is None or end < 0:
            return None
        headers, body_bytes, passes = known
        if len(data) != end + 4 + body_bytes:
            return None
        return Request("POST", line[1], headers, body=data[end + 4 :], passes=passes)

    def learn(self, data: bytes, request: Request) -> None:
        """Keep the headers of a request that the parser has read and that is complete."""
        headers = request.headers
        line = _LINE.match(data)
        if line is None or not request.keep_alive:
            return
        if not 0 < len(request.body) <= self._body_bytes_max:
            return
        if not (_UNUSUAL.isdisjoint(headers) and _NEVER_AGAIN.isdisjoint(headers)):
            return
        end = data.find(b"\r\n\r\n", line.end())
        block = data[line.end() : end]
        # The parser also ends lines that have no return; such a head is not where we look for it.
        if data[end + 4 :] != request.body or len(block) > _BLOCK_BYTES_MAX:
            return
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        passes: Passes | None = {} if headers.get(b"content-type") == _JSON else None
        self._known[block] = _Known(headers, len(request.body), passes)
