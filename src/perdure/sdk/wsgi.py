"""The Serve transport for programs without an event loop: a WSGI application.

Passes run in one loop, in a thread of its own; the server's threads wait for their answers there.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any

from perdure.sdk.endpoint import Endpoint
from perdure.sdk.limits import INVOKE_BYTES_MAX
from perdure.sdk.wire import Reply, refusal

StartResponse = Callable[[str, list[tuple[str, str]]], object]


class WsgiEndpoint:
    """An endpoint to mount in a WSGI server. `start()` it in each process, after any fork."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to register, and to answer."""
        if self._thread is not None:
            return
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="perdure-sdk", daemon=True
        )
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._endpoint.start(), self._loop).result()

    def stop(self) -> None:
        """Register no more. Call it when the server has answered everything."""
        if self._thread is None or self._loop is None:
            return
        asyncio.run_coroutine_threadsafe(self._endpoint.stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = self._thread = None

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        reply = self._answer(environ)
        status = f"{reply.status} {HTTPStatus(reply.status).phrase}"
        length = str(len(reply.body))
        start_response(status, [("Content-Type", "application/json"), ("Content-Length", length)])
        return [reply.body]

    def _answer(self, environ: dict[str, Any]) -> Reply:
        if self._loop is None:
            return refusal(503, "this runner has not been started")
        length = 0
        with contextlib.suppress(ValueError):
            length = int(environ.get("CONTENT_LENGTH") or 0)
        if length > INVOKE_BYTES_MAX:
            return refusal(413, f"an invoke has at most {INVOKE_BYTES_MAX} bytes")
        headers = {
            name[5:].replace("_", "-").lower(): value
            for name, value in environ.items()
            if name.startswith("HTTP_")
        }
        body = environ["wsgi.input"].read(length) if length > 0 else b""
        handling = self._endpoint.handle(environ["REQUEST_METHOD"], headers, body)
        return asyncio.run_coroutine_threadsafe(handling, self._loop).result()
