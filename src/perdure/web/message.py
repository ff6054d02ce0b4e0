"""Requests and responses, and the error that ends a request early."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qsl

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class HttpError(Exception):
    """A refusal with its status and stable reason; `details` stand beside the message."""

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        details: dict[str, Any] | None = None,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.details = details or {}
        self.headers = headers


class Principal:
    """Who asks, and as what."""

    __slots__ = ("method", "roles", "subject")

    def __init__(self, subject: str, roles: frozenset[str], method: str) -> None:
        self.subject = subject
        self.roles = roles
        self.method = method


class Request:
    """One request. `namespace` is set by its surface, `principal` by the door."""

    __slots__ = (
        "_query",
        "_receive",
        "body",
        "headers",
        "method",
        "namespace",
        "params",
        "path",
        "principal",
        "query_string",
    )

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.method: str = scope["method"]
        self.path: bytes = scope["raw_path"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.query_string: bytes = scope["query_string"]
        self.params: dict[str, str] = {}
        self.body = b""
        self.namespace = ""
        self.principal = Principal("anonymous", frozenset(), "none")
        self._receive = receive
        self._query: dict[str, str] | None = None

    def header(self, name: bytes) -> str | None:
        """A header by its lower-case name."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1").strip()

    @property
    def query(self) -> dict[str, str]:
        if self._query is None:
            text = self.query_string.decode("latin-1")
            self._query = dict(parse_qsl(text, keep_blank_values=True))
        return self._query

    async def read_body(self, bytes_max: int) -> None:
        """Take the body in, as long as it is not too large."""
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            part = message.get("body", b"")
            size += len(part)
            if size > bytes_max:
                raise too_large(bytes_max)
            if not message.get("more_body", False):
                self.body = part if not parts else b"".join((*parts, part))
                return
            parts.append(part)

    async def gone(self) -> None:
        """Return when the client has closed its side."""
        while (await self._receive())["type"] != "http.disconnect":
            pass


class ClientGone(Exception):
    """The client left before its request was complete."""


def too_large(bytes_max: int) -> HttpError:
    return HttpError(
        413, "payload_too_large", f"the body is larger than {bytes_max} bytes", {"limit": bytes_max}
    )


class Response:
    """A JSON answer, encoded."""

    __slots__ = ("body", "headers", "status")

    def __init__(
        self, status: int, body: bytes, headers: tuple[tuple[bytes, bytes], ...] = ()
    ) -> None:
        self.status = status
        self.body = body
        self.headers = headers
