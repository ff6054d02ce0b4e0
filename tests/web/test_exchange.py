"""One request on its way: every one is admitted anew, and answers may come later."""

import asyncio
import hashlib
import hmac
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from perdure.engine.reply import Reply
from perdure.web.app import Application
from perdure.web.auth import (
    Authenticator,
    NoAuthentication,
    SignatureAuthentication,
    TokenAuthentication,
)
from perdure.web.exchange import Exchange
from perdure.web.message import DeferredResponse, HttpError, Principal, Request, Response
from perdure.web.routing import Handler, Route, Router
from tests.web.floor import PlainSurface

WORKER, OPERATOR = frozenset({"worker"}), frozenset({"operator"})
JSON = {b"content-type": b"application/json"}


class CountingSurface(PlainSurface):
    """Puts everybody into one namespace, and counts whom it was asked about."""

    def __init__(self) -> None:
        self.asked = 0

    def admit(self, request: Request) -> None:
        self.asked += 1
        request.namespace = "here"


class Desk:
    """A few routes, and what was replied."""

    def __init__(self, authenticator: Authenticator, handler: Handler | None = None) -> None:
        self.surface = CountingSurface()
        self.handled: list[Request] = []
        self.replies: list[tuple[int, bytes]] = []
        handler = handler or self.handle
        table = [
            Route("POST", "/work", WORKER, self.surface, handler, lean=True),
            Route("POST", "/operate", OPERATOR, self.surface, handler, lean=True),
            Route("POST", "/raw", WORKER, self.surface, handler, lean=True, raw_bytes_max=64),
        ]
        app = Application(
            Router(table),
            authenticator,
            surface_of=lambda path: self.surface,
            translate=lambda error: None,
            body_bytes_max=1_024,
            compression_bytes_min=None,
        )
        self._exchange = Exchange(app, self._reply, self._spawn)

    async def handle(self, request: Request) -> Response:
        self.handled.append(request)
        return Response(200, b"{}")

    def ask(
        self,
        path: bytes = b"/work",
        *,
        body: bytes = b"{}",
        headers: dict[bytes, bytes] = JSON,
    ) -> None:
        request = Request("POST", path, headers, body=body, body_bytes=len(body))
        self._exchange.admit(request)
        self._exchange.start(request)

    @property
    def statuses(self) -> list[int]:
        return [status for status, _ in self.replies]

    def _reply(self, request: Request, response: Response) -> None:
        self.replies.append((response.status, response.body))

    def _spawn(self, handling: Coroutine[Any, Any, None]) -> None:
        raise AssertionError("nothing here needs a task")


TOKENS = TokenAuthentication(shared=None, by_role={"worker": "w", "operator": "o"})
AS_WORKER = {**JSON, b"authorization": b"Bearer w"}


def test_every_request_is_admitted_anew() -> None:
    query_broker = Desk(TOKENS)

    for _ in range(2):
        query_broker.ask(headers=AS_WORKER)

    assert query_broker.statuses == [200, 200]
    assert query_broker.surface.asked == 2
    assert {(r.principal.subject, r.namespace) for r in query_broker.handled} == {
        ("role:worker", "here")
    }


class RevocableTokens:
    """Tokens that can be taken back while the server runs."""

    needs_body = False

    def __init__(self) -> None:
        self.is_revoked = False

    def is_of_body(self, request: Request) -> bool:
        return False

    def authenticate(self, request: Request) -> Principal:
        if self.is_revoked:
            raise HttpError(401, "unauthorized", "revoked")
        return TOKENS.authenticate(request)


def test_a_credential_opens_nothing_once_it_is_revoked() -> None:
    """Whatever was admitted with it before."""
    tokens = RevocableTokens()
    query_broker = Desk(tokens)
    query_broker.ask(headers=AS_WORKER)

    tokens.is_revoked = True
    query_broker.ask(headers=AS_WORKER)

    assert query_broker.statuses == [200, 401]


def test_what_opens_one_route_opens_no_other() -> None:
    query_broker = Desk(TOKENS)

    query_broker.ask(b"/work", headers=AS_WORKER)
    query_broker.ask(b"/operate", headers=AS_WORKER)

    assert query_broker.statuses == [200, 403]


def test_a_signature_is_of_one_body() -> None:
    query_broker = Desk(SignatureAuthentication(shared="key", by_role={}))
    signature = hmac.new(b"key", b"{}", hashlib.sha256).hexdigest().encode()
    headers = {**JSON, b"x-signature": signature}

    query_broker.ask(headers=headers)
    query_broker.ask(headers=headers, body=b"[]")

    assert query_broker.statuses == [200, 401]


def test_a_route_of_bytes_takes_no_json() -> None:
    query_broker = Desk(NoAuthentication())

    for path in (b"/work", b"/raw", b"/nowhere"):
        query_broker.ask(path)

    assert query_broker.statuses == [200, 415, 404]


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


class Promised(DeferredResponse):
    """What a test wants to be answered."""

    __slots__ = ("_make",)

    def __init__(self, awaited: Reply, make: Callable[[Any], Any]) -> None:
        super().__init__(awaited)
        self._make = make

    def answer(self) -> Response | Coroutine[Any, Any, Response]:
        answer: Response | Coroutine[Any, Any, Response] = self._make(self.awaited.result())
        return answer


def a_response(told: bytes) -> Response:
    return Response(200, told)


def desk_for(reply: Reply, make: Callable[[Any], Any] = a_response) -> Desk:
    return Desk(NoAuthentication(), lambda request: Promised(reply, make))


def test_an_answer_comes_when_what_it_waits_for_is_there(loop: asyncio.AbstractEventLoop) -> None:
    reply = Reply(loop=loop)
    query_broker = desk_for(reply)

    query_broker.ask()
    assert query_broker.replies == []

    reply.set_result(b"now")
    assert query_broker.replies == [(200, b"now")]


def test_what_is_there_already_is_answered_at_once(loop: asyncio.AbstractEventLoop) -> None:
    reply = Reply(loop=loop)
    reply.set_result(b"before")
    query_broker = desk_for(reply)

    query_broker.ask()

    assert query_broker.replies == [(200, b"before")]


@pytest.mark.parametrize("is_early", [True, False])
def test_a_refusal_that_comes_later_is_a_refusal(
    loop: asyncio.AbstractEventLoop, is_early: bool
) -> None:
    reply = Reply(loop=loop)
    query_broker = desk_for(reply)
    if not is_early:
        query_broker.ask()

    reply.set_exception(HttpError(409, "taken", "somebody else has it"))
    if is_early:
        query_broker.ask()

    assert query_broker.statuses == [409]


def test_what_is_given_up_is_answered_once(loop: asyncio.AbstractEventLoop) -> None:
    reply = Reply(loop=loop)
    query_broker = desk_for(reply)
    query_broker.ask()

    reply.cancel()
    loop.run_until_complete(asyncio.sleep(0))

    assert query_broker.statuses == [500]


def test_an_answer_that_needs_more_goes_on_as_a_coroutine(loop: asyncio.AbstractEventLoop) -> None:
    first, second = (Reply(loop=loop) for _ in range(2))

    async def go_on(told: bytes) -> Response:
        return Response(200, told + await second)

    query_broker = desk_for(first, go_on)
    query_broker.ask()
    first.set_result(b"one ")
    assert query_broker.replies == []

    second.set_result(b"two")
    assert query_broker.replies == [(200, b"one two")]


def test_a_handler_that_refuses_before_it_waits_is_a_refusal() -> None:
    def refuse(request: Request) -> DeferredResponse:
        raise HttpError(422, "odd", "this makes no sense")

    query_broker = Desk(NoAuthentication(), refuse)
    query_broker.ask()

    assert query_broker.statuses == [422]


def test_a_handler_is_told_once_that_its_client_is_gone() -> None:
    request, told = Request("GET", b"/", {}), list[str]()
    request.watch(lambda: told.append("early"))

    request.went_away()
    request.went_away()
    assert told == ["early"]
    assert request.is_gone

    request.watch(lambda: told.append("late"))
    assert told == ["early", "late"]
