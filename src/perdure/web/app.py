"""The door. Checks have one order: body, authentication, role, version, namespace, validation."""

import logging
from collections.abc import Callable

from perdure.web.auth import Authenticator, require_role
from perdure.web.compression import choose, compress
from perdure.web.message import HttpError, Request, Response, too_large
from perdure.web.routing import PUBLIC, Router, Surface

log = logging.getLogger(__name__)

_JSON = b"application/json"


class Application:
    """Answers requests by a route table."""

    def __init__(
        self,
        router: Router,
        authenticator: Authenticator,
        *,
        surface_of: Callable[[bytes], Surface],
        translate: Callable[[Exception], HttpError | None],
        body_bytes_max: int,
        compression_bytes_min: int | None,
    ) -> None:
        self.router = router
        self.body_bytes_max = body_bytes_max
        self._authenticator = authenticator
        self._surface_of = surface_of
        self._translate = translate
        self._compression_bytes_min = compression_bytes_min

    async def answer(self, request: Request) -> Response:
        """The answer to a request, whatever happens."""
        surface: Surface | None = None
        try:
            self._check_body(request)
            route = self.router.find(request)
            surface = route.surface
            if route.roles is not PUBLIC:
                request.principal = self._authenticator.authenticate(request)
                require_role(request.principal, route.roles)
            surface.admit(request)
            response = await route.handler(request)
        except HttpError as error:
            surface = surface or self._surface_of(request.path)
            response = surface.refuse(request, error)
        except Exception as error:
            surface = surface or self._surface_of(request.path)
            response = surface.refuse(request, self._explain(request, error))
        if b"accept-encoding" in request.headers:
            self._compress(request, response)
        return response

    def _explain(self, request: Request, error: Exception) -> HttpError:
        translated = self._translate(error)
        if translated is None:
            path = request.path.decode("latin-1")
            log.error("%s %s is broken", request.method, path, exc_info=error)
            translated = HttpError(500, "server_error", "the server has made a mistake")
        return translated

    def _check_body(self, request: Request) -> None:
        if request.refusal is not None:
            raise request.refusal
        if not request.body:
            return
        if len(request.body) > self.body_bytes_max:
            raise too_large(self.body_bytes_max)
        media_type = request.headers.get(b"content-type", b"")
        if media_type == _JSON:
            return
        media_type = media_type.partition(b";")[0].strip().lower()
        if media_type != _JSON and not media_type.endswith(b"+json"):
            accepted = ["application/json", "application/*+json"]
            raise HttpError(
                415,
                "unsupported_media_type",
                "bodies are JSON",
                {"accepted_content_types": accepted},
            )

    def _compress(self, request: Request, response: Response) -> None:
        least = self._compression_bytes_min
        if least is None or len(response.body) < least:
            return
        encoding = choose(request.headers[b"accept-encoding"])
        if encoding is None:
            return
        response.body = compress(response.body, encoding)
        response.headers = (
            *response.headers,
            (b"content-encoding", encoding),
            (b"vary", b"accept-encoding"),
        )
