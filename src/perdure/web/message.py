"""Requests and responses, and the error that ends a request early."""

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl


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


_NOBODY = Principal("anonymous", frozenset(), "none")


class Request:
    """One request. `namespace` is set by its surface, `principal` by the door."""

    __slots__ = (
        "_on_gone",
        "_query",
        "body",
        "headers",
        "is_gone",
        "is_upgrade",
        "keep_alive",
        "method",
        "namespace",
        "params",
        "path",
        "principal",
        "query_string",
        "refusal",
    )

    def __init__(
        self, method: str, target: bytes, headers: dict[bytes, bytes], *, keep_alive: bool = True
    ) -> None:
        self.method = method
        if target[:1] != b"/":
            target = _origin_form(target)
        self.path, _, self.query_string = target.partition(b"?")
        self.headers = headers
        self.keep_alive = keep_alive
        self.params: dict[str, str] = {}
        self.body = b""
        self.namespace = ""
        self.principal = _NOBODY
        # Set while the request is still coming in, when it can only be refused.
        self.refusal: HttpError | None = None
        self.is_gone = False
        # Whether the client asks to go on as a WebSocket.
        self.is_upgrade = False
        self._on_gone: Callable[[], object] | None = None
        self._query: dict[str, str] | None = None

    def header(self, name: bytes) -> str | None:
        """A header by its lower-case name."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1").strip()

    @property
    def query(self) -> dict[str, str]:
        if self._query is None:
            text = self.query_string.decode("latin-1")
            self._query = dict(parse_qsl(text, keep_blank_values=True)) if text else {}
        return self._query

    def watch(self, on_gone: Callable[[], object]) -> None:
        """Be told when the client closes its side before it has its answer."""
        self._on_gone = on_gone
        if self.is_gone:
            on_gone()

    def went_away(self) -> None:
        self.is_gone = True
        if self._on_gone is not None:
            self._on_gone()


def _origin_form(target: bytes) -> bytes:
    """The path and query of a target in absolute form, as a proxy may send it."""
    scheme, separator, rest = target.partition(b"://")
    if not separator or scheme.lower() not in (b"http", b"https"):
        return target
    _, slash, path = rest.partition(b"/")
    return slash + path or b"/"


def too_large(bytes_max: int) -> HttpError:
    return HttpError(
        413, "payload_too_large", f"the body is larger than {bytes_max} bytes", {"limit": bytes_max}
    )


class Response:
    """An answer, encoded: JSON, unless it says otherwise."""

    __slots__ = ("body", "headers", "media_type", "status")

    def __init__(
        self,
        status: int,
        body: bytes,
        headers: tuple[tuple[bytes, bytes], ...] = (),
        media_type: bytes = b"application/json",
    ) -> None:
        self.status = status
        self.body = body
        self.headers = headers
        self.media_type = media_type


class Successor(asyncio.Protocol):
    """What a connection can become. It is told when it shall end."""

    on_left: Callable[[], None] = staticmethod(lambda: None)

    def connection_lost(self, error: Exception | None) -> None:
        self.on_left()

    def go_away(self) -> None:
        """The server is about to stop."""
        raise NotImplementedError

    def abort(self) -> None:
        """Its time is up."""
        raise NotImplementedError


class Handover(Response):
    """An answer without an end: behind its head the connection belongs to a successor."""

    __slots__ = ("successor",)

    def __init__(
        self, status: int, headers: tuple[tuple[bytes, bytes], ...], successor: Successor
    ) -> None:
        super().__init__(status, b"", headers)
        self.successor = successor
