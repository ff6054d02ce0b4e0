"""The route table: raw path segments, one policy per route, deny by default."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import unquote_to_bytes

from perdure.web.message import DeferredResponse, HttpError, Request, Response

Handler = Callable[[Request], Coroutine[Any, Any, Response] | DeferredResponse]

PUBLIC: frozenset[str] = frozenset({"*public*"})
"""The roles of a route that anybody may use; it has to be said."""


class Surface(Protocol):
    """A family of routes with one way to admit, to refuse and to answer."""

    def admit(self, request: Request) -> None:
        """Check version and namespace, by the head alone. Raises `HttpError`."""
        ...

    def refuse(self, request: Request, error: HttpError) -> Response:
        """Put an error into the family's shape."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """A method and a path with `{name}` segments. Each is itself, whatever it looks like.

    A `lean` handler runs outside of any task of its own, also inside of somebody else's. So it
    may not use what needs one (`asyncio.timeout`, task groups, most drivers). Only such a handler
    may answer `Later`. `upgrades` says that its requests become WebSockets.
    """

    method: str
    path: str
    roles: frozenset[str]
    surface: Surface
    handler: Handler
    lean: bool = False
    raw_bytes_max: int = 0
    """How large its bodies may be if they are bytes, and no JSON; 0 where they are JSON."""
    upgrades: bool = False


class Router:
    """Finds routes by segments, so that an escaped slash stays inside its segment."""

    def __init__(self, routes: list[Route]) -> None:
        self.routes = routes
        self._fixed: dict[tuple[str, bytes], Route] = {}
        # The common shape `/literal/{name}/literal`: by method and both literal ends.
        self._framed: dict[tuple[str, bytes, bytes], tuple[str, Route]] = {}
        # By method, number of segments and, where it is literal, the last segment.
        self._open: dict[tuple[str, int, str | None], list[tuple[list[str], Route]]] = {}
        for route in routes:
            segments = route.path.strip("/").split("/")
            if not any(segment.startswith("{") for segment in segments):
                self._fixed[(route.method, route.path.encode())] = route
                continue
            if len(segments) > 2 and [s.startswith("{") for s in segments].count(True) == 1:
                first, middle, end = route.path.rsplit("/", 2)
                if middle.startswith("{"):
                    key = (route.method, first.encode(), end.encode())
                    self._framed.setdefault(key, (middle[1:-1], route))
            last = None if segments[-1].startswith("{") else segments[-1]
            shape = (route.method, len(segments), last)
            self._open.setdefault(shape, []).append((segments, route))

    def find(self, request: Request) -> Route:
        """The route of a request; its path parameters are set on it. 404 or 405 otherwise.

        `HEAD` is answered where `GET` is, without the body.
        """
        method, path = request.method, request.path
        if method == "HEAD":
            method = "GET"
        route = self._fixed.get((method, path))
        if route is not None:
            return route
        rest, _, last = path.rpartition(b"/")
        first, _, middle = rest.rpartition(b"/")
        framed = self._framed.get((method, first, last))
        if framed is not None and middle and middle.isascii() and middle.find(b"%") < 0:
            name, route = framed
            request.params = {name: middle.decode()}
            return route
        segments = _segments(path)
        found = self._find_open(method, segments)
        if found is None:
            raise self._explain(request, segments)
        route, request.params = found
        return route

    def _find_open(self, method: str, segments: list[str]) -> tuple[Route, dict[str, str]] | None:
        for last in (segments[-1], None):
            for pattern, route in self._open.get((method, len(segments), last), ()):
                params = _match(pattern, segments)
                if params is not None:
                    return route, params
        return None

    def _explain(self, request: Request, segments: list[str]) -> HttpError:
        methods = {route.method for route in self.routes}
        allowed = [
            method
            for method in methods
            if (method, request.path) in self._fixed or self._find_open(method, segments)
        ]
        if not allowed:
            return HttpError(404, "not_found", "there is nothing at this path")
        if "GET" in allowed:
            allowed.append("HEAD")
        allowed.sort()
        return HttpError(
            405,
            "method_not_allowed",
            f"{request.method} is not a method of this path",
            headers=((b"allow", ", ".join(allowed).encode()),),
        )


def _match(pattern: list[str], segments: list[str]) -> dict[str, str] | None:
    params: dict[str, str] = {}
    for expected, segment in zip(pattern, segments, strict=True):
        if expected.startswith("{"):
            if not segment:
                return None
            params[expected[1:-1]] = segment
        elif expected != segment:
            return None
    return params


def _segments(path: bytes) -> list[str]:
    """The decoded segments of a path; an escaped slash stays inside its segment."""
    try:
        if b"%" not in path:
            return path.decode("utf-8").strip("/").split("/")
        return [unquote_to_bytes(part).decode("utf-8") for part in path.strip(b"/").split(b"/")]
    except UnicodeDecodeError:
        raise HttpError(404, "not_found", "the path is not UTF-8") from None
