"""The route table: raw path segments, one policy per route, deny by default."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol
from urllib.parse import unquote_to_bytes

from perdure.web.message import HttpError, Request, Response

Handler = Callable[[Request], Awaitable[Response]]

PUBLIC: frozenset[str] = frozenset({"*public*"})
"""The roles of a route that anybody may use; it has to be said."""


class Surface(Protocol):
    """A family of routes with one way to admit, to refuse and to answer."""

    def admit(self, request: Request) -> None:
        """Check version and namespace. Raises `HttpError`."""
        ...

    def refuse(self, request: Request, error: HttpError) -> Response:
        """Put an error into the family's shape."""
        ...


class Route(NamedTuple):
    """A method and a path with `{name}` segments; `{name…}` takes the rest of the path."""

    method: str
    path: str
    roles: frozenset[str]
    surface: Surface
    handler: Handler


class Router:
    """Finds routes by segments, so that an escaped slash stays inside its segment."""

    def __init__(self, routes: list[Route]) -> None:
        self.routes = routes
        self._fixed: dict[tuple[str, bytes], Route] = {}
        self._open: dict[int, list[tuple[list[str], Route]]] = {}
        for route in routes:
            segments = route.path.strip("/").split("/")
            if any(segment.startswith("{") for segment in segments):
                self._open.setdefault(len(segments), []).append((segments, route))
            else:
                self._fixed[(route.method, route.path.encode())] = route
        self._methods: dict[bytes, set[str]] = {}
        for method, path in self._fixed:
            self._methods.setdefault(path, set()).add(method)

    def find(self, request: Request) -> Route:
        """The route of a request; its path parameters are set on it. 404 or 405 otherwise."""
        route = self._fixed.get((request.method, request.path))
        if route is not None:
            return route
        segments = [_decode(segment) for segment in request.path.strip(b"/").split(b"/")]
        allowed = set(self._methods.get(request.path, ()))
        for pattern, candidate in self._open.get(len(segments), ()):
            params = _match(pattern, segments)
            if params is None:
                continue
            if candidate.method == request.method:
                request.params = params
                return candidate
            allowed.add(candidate.method)
        if allowed:
            allow = ", ".join(sorted(allowed)).encode()
            raise HttpError(
                405,
                "method_not_allowed",
                f"{request.method} is not a method of this path",
                headers=((b"allow", allow),),
            )
        raise HttpError(404, "not_found", "there is nothing at this path")


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


def _decode(segment: bytes) -> str:
    try:
        return unquote_to_bytes(segment).decode("utf-8")
    except UnicodeDecodeError:
        raise HttpError(404, "not_found", "the path is not UTF-8") from None
