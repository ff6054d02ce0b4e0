"""Requests and responses, and the error that ends a request early."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import parse_qsl

from msgspec import Struct

from perdure.web.memory import Memory

if TYPE_CHECKING:
    from perdure.web.routing import Route


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
    """One request. `namespace` is set by its surface, `principal` by the door.

    A class of slots, since its fields are set one by one, with every request.
    """

    __slots__ = (
        "_on_gone",
        "_query",
        "awaits_body",
        "body",
        "body_bytes",
        "headers",
        "held",
        "is_chunked",
        "is_gone",
        "is_known",
        "is_upgrade",
        "keep_alive",
        "method",
        "namespace",
        "params",
        "path",
        "peer",
        "principal",
        "query_string",
        "refusal",
        "route",
        "server_address",
    )

    def __init__(
        self,
        method: str,
        path: bytes,
        headers: dict[bytes, bytes],
        query_string: bytes = b"",
        keep_alive: bool = True,
        peer: str = "",
        server_address: str = "",
        body: bytes = b"",
        body_bytes: int = 0,
        namespace: str = "",
    ) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self.query_string = query_string
        self.keep_alive = keep_alive
        # Who sent it, and the address of ours that it was sent to.
        self.peer = peer
        self.server_address = server_address
        self.body = body
        # How large its body is said to be, or has turned out to be.
        self.body_bytes = body_bytes
        self.namespace = namespace
        self.params: dict[str, str] = {}
        self.principal = _NOBODY
        self.route: Route | None = None
        # Why it was not admitted, if it was not.
        self.refusal: Exception | None = None
        # Whether its sender has shown a credential that is valid.
        self.is_known = False
        # Whether its credential is of the whole body, as signatures are.
        self.awaits_body = False
        self.is_chunked = False
        # How much of it counts against the memory of all connections.
        self.held = 0
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
        """Tell its handler, once."""
        self.is_gone = True
        on_gone, self._on_gone = self._on_gone, None
        if on_gone is not None:
            on_gone()


def request_for(
    method: str,
    target: bytes,
    headers: dict[bytes, bytes],
    keep_alive: bool = True,
    peer: str = "",
    server_address: str = "",
) -> Request:
    """A request whose target is as it was sent."""
    if target[:1] != b"/":
        target = _origin_form(target)
    path, _, query_string = target.partition(b"?")
    return Request(method, path, headers, query_string, keep_alive, peer, server_address)


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


class Response(Struct, eq=False):
    """An answer, encoded: JSON, unless it says otherwise."""

    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()
    media_type: bytes = b"application/json"
    tail: bytes = b""
    """The end of the body, if it is the same for many: it is not copied before it is sent."""


class Teller(Protocol):
    """Something to come that tells one listener at once."""

    def done(self) -> bool: ...
    def result(self) -> Any: ...
    def tell(self, listener: "Callable[[Any], None]") -> None: ...


class DeferredResponse:
    """An answer that waits for one thing only. It costs less than a coroutine that awaits it."""

    __slots__ = ("awaited",)

    def __init__(self, awaited: Teller) -> None:
        self.awaited = awaited

    def answer(self) -> "Response | Coroutine[Any, Any, Response]":
        """Called when that thing is there. What is left to be awaited is left to a coroutine."""
        raise NotImplementedError


def _do_nothing() -> None:
    pass


class Successor(asyncio.Protocol):
    """What a connection can become. It is told when it shall end."""

    on_left: Callable[[], None] = staticmethod(_do_nothing)
    memory: Memory | None = None
    """Where it counts what it holds."""

    def connection_lost(self, error: Exception | None) -> None:
        on_left, self.on_left = self.on_left, _do_nothing
        on_left()

    def check(self, sweep: int) -> None:
        """End what is past its deadline."""

    def go_away(self) -> None:
        """The server is about to stop."""
        raise NotImplementedError

    def abort(self) -> None:
        """Its time is up."""
        raise NotImplementedError


class Handover(Response, eq=False, kw_only=True):
    """An answer without an end: behind its head the connection belongs to a successor."""

    successor: Successor
