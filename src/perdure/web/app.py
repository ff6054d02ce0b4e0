"""The door: one function admits a request, by its head, before any of its body is kept."""

import logging
from collections.abc import Callable

from perdure.web.auth import Authenticator, require_role
from perdure.web.compression import choose, compress
from perdure.web.failed_logins import FailedLogins
from perdure.web.local_access import LocalAccess
from perdure.web.message import HttpError, Principal, Request, Response, too_large
from perdure.web.routing import PUBLIC, Route, Router, Surface

log = logging.getLogger(__name__)

_JSON = b"application/json"
_BYTES = b"application/octet-stream"


class Application:
    """Who is let in, and where to. What a handler says is sent by the exchange."""

    def __init__(
        self,
        router: Router,
        authenticator: Authenticator,
        *,
        surface_of: Callable[[bytes], Surface],
        translate: Callable[[Exception], HttpError | None],
        body_bytes_max: int,
        compression_bytes_min: int | None,
        local_access: LocalAccess | None = None,
    ) -> None:
        self.router = router
        self.body_bytes_max = body_bytes_max
        self._authenticator = authenticator
        self._needs_body = authenticator.needs_body
        self._surface_of = surface_of
        self._translate = translate
        self._compression_bytes_min = compression_bytes_min
        self._local_access = local_access
        self.failed_logins = FailedLogins()
        self._raw = {
            (route.method, route.path.encode()): route.raw_bytes_max
            for route in router.routes
            if route.raw_bytes_max
        }
        self._raw_paths = {path for _, path in self._raw}

    def body_limit(self, request: Request) -> int:
        """How large the body of a request may be."""
        return self._raw.get((request.method, request.path), self.body_bytes_max)

    def admit(self, request: Request) -> None:
        """Admit a request by its head, or raise. Its route, principal and namespace are set.

        The one order of all checks: host and origin, announced body, route, credential, role,
        version, namespace.
        The head itself has been checked by the connection; room for the body is reserved by it.
        """
        if self._local_access is not None:
            self._local_access.check(request)
        size = request.body_bytes
        if size and (
            request.headers.get(b"content-type") != _JSON
            or size > self.body_bytes_max
            or request.path in self._raw_paths
        ):
            self._check_body(request)
        route = request.route = self.router.find(request)
        if request.is_upgrade and not route.upgrades:
            raise HttpError(400, "upgrade_not_supported", "this path cannot be upgraded")
        roles = route.roles
        if roles is not PUBLIC:
            if self._needs_body and self._authenticator.is_of_body(request):
                request.awaits_body = True
                return
            principal = request.principal = self._authenticate(request)
            request.is_known = True
            if principal.roles.isdisjoint(roles):
                require_role(principal, roles)
        route.surface.admit(request)

    def admit_body(self, request: Request, route: Route) -> None:
        """Check what only the whole body tells: its real size and type, and its signature."""
        if request.is_chunked and request.body:
            request.body_bytes = len(request.body)
            self._check_body(request)
        if request.awaits_body:
            request.principal = self._authenticate(request)
            require_role(request.principal, route.roles)
            route.surface.admit(request)

    def _authenticate(self, request: Request) -> Principal:
        try:
            return self._authenticator.authenticate(request)
        except HttpError:
            self.failed_logins.note(request)
            raise

    def refuse(self, request: Request, error: BaseException) -> Response:
        """The answer to a request that failed, in the shape of its family."""
        route = request.route
        surface = self._surface_of(request.path) if route is None else route.surface
        if not isinstance(error, HttpError):
            error = self._explain(request, error)
        return surface.refuse(request, error)

    def last_word(self, request: Request, error: Exception) -> Response:
        """The answer when a refusal could not be put into words: any shape, but an answer."""
        told = self._explain(request, error)
        body = b'{"message":"%b","reason":"%b"}'
        return Response(500, body % (told.message.encode(), told.reason.encode()))

    def _explain(self, request: Request, error: BaseException) -> HttpError:
        translated = self._translate(error) if isinstance(error, Exception) else None
        if translated is None:
            path = request.path.decode("latin-1")
            log.error("%s %s failed with an unexpected error", request.method, path, exc_info=error)
            translated = HttpError(500, "server_error", "internal server error")
        return translated

    def _check_body(self, request: Request) -> None:
        most = self.body_limit(request)
        if request.body_bytes > most:
            raise too_large(most)
        media_type = request.headers.get(b"content-type", b"")
        if (request.method, request.path) in self._raw:
            if media_type != _BYTES:
                raise _unsupported("bodies of this path are bytes", _BYTES.decode())
            return
        media_type = media_type.partition(b";")[0].strip().lower()
        if media_type == _JSON or media_type.endswith(b"+json"):
            return
        if not getattr(self._surface_of(request.path), "takes_any_media", False):
            raise _unsupported("bodies are JSON", "application/json", "application/*+json")

    def compress(self, request: Request, response: Response) -> None:
        """Make a large answer smaller for a client that reads such."""
        least = self._compression_bytes_min
        body = response.body + response.tail
        if least is None or len(body) < least or response.media_type != _JSON:
            return
        encoding = choose(request.headers[b"accept-encoding"])
        if encoding is None:
            return
        response.body, response.tail = compress(body, encoding), b""
        response.headers = (
            *response.headers,
            (b"content-encoding", encoding),
            (b"vary", b"accept-encoding"),
        )


def _unsupported(message: str, *accepted: str) -> HttpError:
    details = {"accepted_content_types": list(accepted)}
    return HttpError(415, "unsupported_media_type", message, details)
