"""The door. Checks come in one order: body, authentication, role, version, namespace, validation."""

import logging
from collections.abc import Callable

from perdure.web.auth import Authenticator, require_role
from perdure.web.compression import choose, compress
from perdure.web.message import (
    ClientGone,
    HttpError,
    Receive,
    Request,
    Response,
    Scope,
    Send,
    too_large,
)
from perdure.web.routing import Router, Surface

log = logging.getLogger(__name__)

_JSON = b"application/json"


class Application:
    """An ASGI application over a route table."""

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
        self._authenticator = authenticator
        self._surface_of = surface_of
        self._translate = translate
        self._body_bytes_max = body_bytes_max
        self._compression_bytes_min = compression_bytes_min

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1000})
            return
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
        except ClientGone:
            return
        await self._send(request, response, send)

    async def _answer(self, request: Request) -> Response:
        surface = self._surface_of(request.path)
        try:
            self._check_length(request)
            await request.read_body(self._body_bytes_max)
            self._check_media_type(request)
            route = self.router.find(request)
            surface = route.surface
            if "*public*" not in route.roles:
                request.principal = self._authenticator.authenticate(request)
                require_role(request.principal, route.roles)
            surface.admit(request)
            return await route.handler(request)
        except HttpError as error:
            return surface.refuse(request, error)
        except ClientGone:
            raise
        except Exception as error:
            translated = self._translate(error)
            if translated is None:
                log.exception("%s %s is broken", request.method, request.path.decode("latin-1"))
                translated = HttpError(500, "server_error", "the server has made a mistake")
            return surface.refuse(request, translated)

    def _check_length(self, request: Request) -> None:
        length = request.headers.get(b"content-length")
        if length is not None and length.isdigit() and int(length) > self._body_bytes_max:
            raise too_large(self._body_bytes_max)

    def _check_media_type(self, request: Request) -> None:
        if not request.body:
            return
        media_type = request.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if media_type != _JSON and not media_type.endswith(b"+json"):
            accepted = ["application/json", "application/*+json"]
            raise HttpError(
                415,
                "unsupported_media_type",
                "bodies are JSON",
                {"accepted_content_types": accepted},
            )

    async def _send(self, request: Request, response: Response, send: Send) -> None:
        body = response.body
        headers = [(b"content-type", _JSON), *response.headers]
        least = self._compression_bytes_min
        if least is not None and len(body) >= least:
            encoding = choose(request.headers.get(b"accept-encoding", b""))
            headers.append((b"vary", b"accept-encoding"))
            if encoding is not None:
                body = compress(body, encoding)
                headers.append((b"content-encoding", encoding))
        headers.append((b"content-length", b"%d" % len(body)))
        start = {"type": "http.response.start", "status": response.status, "headers": headers}
        await send(start)
        await send({"type": "http.response.body", "body": body})
