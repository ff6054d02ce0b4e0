"""One HTTP request to an address that was vetted: a post, a bounded look at the answer, good-bye.

It follows no redirect (who sends vets the next address first), knows no proxy and looks up no
name. The certificate of a server must be that of the name in the URL, whatever address it has.
"""

import asyncio
import ssl
from collections.abc import Mapping

import httptools

from perdure.core import limits
from perdure.dispatch.egress import Vetted

_SECOND = limits.SECOND


class NoAnswer(Exception):
    """The connection failed, or what came is not HTTP."""


class Answer:
    """What a server answered, as far as it is kept."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.status = 0
        self.headers: dict[str, str] = {}
        self.location: str | None = None
        self.body = b""
        self.is_complete = False

    def feed(self, data: bytes) -> None:
        """More of the answer has come."""
        self._parser.feed_data(data)

    # What the parser calls.
    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"location":
            self.location = value.decode("latin-1")[: limits.URL_LENGTH_MAX + 1]
        if len(self.headers) < limits.DELIVERY_HEADERS_KEPT:
            self.headers[name.decode("latin-1").lower()[:64]] = value.decode("latin-1")[:256]

    def on_body(self, body: bytes) -> None:
        if len(self.body) < limits.DELIVERY_SNIPPET_BYTES_MAX:
            self.body += body[: limits.DELIVERY_SNIPPET_BYTES_MAX - len(self.body)]

    def on_message_complete(self) -> None:
        self.is_complete = self.status >= 200
        if not self.is_complete:
            # An interim answer; the real one follows.
            self.headers.clear()
            self.location = None


class Outgoing:
    """Posts bodies. The context says whom to trust; without one, those whom the machine trusts."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self._context = context

    async def post(self, vetted: Vetted, headers: Mapping[str, str], body: bytes) -> Answer:
        """The answer to a post. Raises NoAnswer, or TimeoutError when nobody can be reached.

        Whoever sends says how long all of it may take.
        """
        reader, writer = await self._connect(vetted)
        try:
            writer.write(_request(vetted, headers, body))
            await writer.drain()
            return await _read(reader)
        except (OSError, ssl.SSLError, httptools.HttpParserError) as error:
            raise NoAnswer(_said(error)) from error
        finally:
            # The answer is here, or nobody wants it: do not wait for their good-bye.
            writer.transport.abort()

    async def _connect(self, vetted: Vetted) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        target = vetted.target
        secure = target.scheme == "https"
        failure: Exception = NoAnswer("there is no address to connect to")
        for address in vetted.addresses:
            try:
                async with asyncio.timeout(limits.DELIVERY_CONNECT_TIMEOUT / _SECOND):
                    return await asyncio.open_connection(
                        address,
                        target.port,
                        ssl=self._trusting() if secure else None,
                        server_hostname=target.host if secure else None,
                    )
            except (OSError, ssl.SSLError, TimeoutError) as error:
                failure = error
        if isinstance(failure, TimeoutError):
            raise failure
        raise NoAnswer(_said(failure)) from failure

    def _trusting(self) -> ssl.SSLContext:
        # Made when first needed: it reads a few hundred certificates.
        self._context = self._context or ssl.create_default_context()
        return self._context


def _request(vetted: Vetted, headers: Mapping[str, str], body: bytes) -> bytes:
    lines = [f"POST {vetted.target.path} HTTP/1.1", f"Host: {vetted.target.authority}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines += [f"Content-Length: {len(body)}", "Connection: close", "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


async def _read(reader: asyncio.StreamReader) -> Answer:
    answer = Answer()
    seen = 0
    while not answer.is_complete and seen < limits.DELIVERY_RESPONSE_BYTES_MAX:
        chunk = await reader.read(16_384)
        if not chunk:
            break
        seen += len(chunk)
        try:
            answer.feed(chunk)
        except httptools.HttpParserUpgrade:
            break
    if answer.status < 200:
        raise NoAnswer("the connection ended before there was an answer")
    return answer


def _said(error: Exception) -> str:
    return (str(error) or type(error).__name__)[:200]
