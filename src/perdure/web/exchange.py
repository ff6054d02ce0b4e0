"""One request on its way to its answer.

A handler is a coroutine. One that waits for little else than the engine is driven from here, step
by step: a task of its own would cost as much as the work that most requests are. Every other
handler gets a task. Those that wait for one thing only, and are asked for most, are no coroutines.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from perdure.web.app import Application
from perdure.web.message import DeferredResponse, HttpError, Request, Response

Reply = Callable[[Request, Response], None]
Spawn = Callable[[Coroutine[Any, Any, None]], None]


class Exchange:
    """Has an admitted request handled and replies, exactly once and whatever happens.

    A connection has one, for one request after the other.
    """

    __slots__ = ("_app", "_handling", "_later", "_reply", "_request", "_spawn")

    def __init__(self, app: Application, reply: Reply, spawn: Spawn) -> None:
        self._app = app
        self._reply = reply
        self._spawn = spawn
        self._request: Request
        self._handling: Coroutine[Any, Any, Response]
        self._later: DeferredResponse | None

    def admit(self, request: Request) -> None:
        """Admit a request by its head. A refusal is noted on it, and replied in its turn."""
        try:
            self._app.admit(request)
        except HttpError as error:
            # Its traceback refers to the request.
            request.refusal = error.with_traceback(None)
        except Exception as error:
            request.refusal = error

    def start(self, request: Request) -> None:
        """Reply now, or as soon as there is an answer. The request before has its reply."""
        self._request = request
        if request.refusal is not None:
            self._refuse(request.refusal)
            return
        route = request.route
        assert route is not None
        try:
            if request.is_chunked or request.awaits_body:
                self._app.admit_body(request, route)
            handling = route.handler(request)
        except Exception as error:
            self._refuse(error)
            return
        if isinstance(handling, DeferredResponse):
            self._wait_for(handling)
            return
        self._handling = handling
        if route.lean:
            self._step()
        else:
            self._spawn(self._run())

    def _wait_for(self, later: DeferredResponse) -> None:
        self._later = later
        if later.awaited.done():
            self._told()
        else:
            later.awaited.tell(self._told)

    def _told(self, awaited: object = None) -> None:
        """What the answer waits for is there."""
        later, self._later = self._later, None
        assert later is not None
        try:
            answer = later.answer()
        except (Exception, asyncio.CancelledError) as error:
            self._refuse(error)
            return
        if isinstance(answer, Response):
            self._finish(answer)
        else:
            self._handling = answer
            self._step()

    def _step(self, awaited: "asyncio.Future[Any] | None" = None) -> None:
        """Go on to where the handler waits for a future, or to its end."""
        try:
            awaited = self._handling.send(None)
        except StopIteration as end:
            self._finish(end.value)
            return
        except (Exception, asyncio.CancelledError) as error:
            self._refuse(error)
            return
        if awaited is None:
            # Only a turn of the loop was asked for.
            asyncio.get_running_loop().call_soon(self._step)
        else:
            # What a task does to say that it has seen what is awaited.
            awaited._asyncio_future_blocking = False
            # Some futures tell a listener at once; others in the next turn of the loop.
            tell = getattr(awaited, "tell", None)
            (tell or awaited.add_done_callback)(self._step)

    async def _run(self) -> None:
        try:
            response = await self._handling
        except Exception as error:
            self._refuse(error)
        else:
            self._finish(response)

    def _refuse(self, error: BaseException) -> None:
        try:
            response = self._app.refuse(self._request, error)
        except Exception as broken:
            response = self._app.last_word(self._request, broken)
        self._finish(response)

    def _finish(self, response: Response) -> None:
        request = self._request
        # An idle connection does not keep the body of its last request.
        del self._request
        if b"accept-encoding" in request.headers:
            self._app.compress(request, response)
        self._reply(request, response)
