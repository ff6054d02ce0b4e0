"""Webhooks on their way out: counted before they are sent, sent again, signed, kept inside."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from perdure.core import limits
from perdure.core.intake.keyring import Keyring
from perdure.core.intake.signature import verify
from perdure.dispatch.egress import Blocked, EgressGuard, next_hop
from perdure.dispatch.outgoing_http import Outgoing
from perdure.engine.operation import Operation
from perdure.engine.world import World
from perdure.features.webhooks.delivery_operations import (
    DELIVERY,
    BeginDelivery,
    Redeliver,
    open_delivery,
)
from perdure.features.webhooks.loops import WebhookSender
from perdure.features.webhooks.operations import (
    AddEndpoint,
    Announce,
    ChangeEndpoint,
    Endpoint,
    secret_owner,
)
from perdure.features.webhooks.rules import DELAYS, Delivery, opened
from tests.engine.engine_harness import NAMESPACE, Stage, play
from tests.engine.faulty import disk_full

KEYS = Keyring(["k" * 32])
SECRET = "whsec_test"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"


class Open(Operation):
    """Send something to an address."""

    __slots__ = ("_delivery_id", "_url")

    def __init__(self, url: str, delivery_id: str = "d1") -> None:
        self._url = url
        self._delivery_id = delivery_id

    def decide(self, world: World) -> None:
        delivery = opened(
            self._delivery_id,
            app="shop",
            url=self._url,
            kind="custom",
            body=b'{"a":1}',
            now=world.ctx.now,
        )
        open_delivery(world, NAMESPACE, delivery)


class Home:
    """Knows only this machine, and says so under every name."""

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1"]


class Receiver:
    """A server that notes what it gets and answers what it is told, the last for ever."""

    def __init__(self) -> None:
        self.answers = [OK]
        self.requests: list[bytes] = []
        self.port = 0
        self.arrived = asyncio.Event()

    @property
    def url(self) -> str:
        return f"http://receiver.test:{self.port}/hook?x=1"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        self.requests.append(head + await reader.readexactly(length))
        self.arrived.set()
        answer = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
        if answer:
            writer.write(answer)
            await writer.drain()
        writer.close()

    def header(self, name: str, place: int = -1) -> str | None:
        for line in self.requests[place].split(b"\r\n\r\n")[0].decode().split("\r\n")[1:]:
            told, _, value = line.partition(": ")
            if told.lower() == name.lower():
                return value
        return None


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0)
    receiver.port = server.sockets[0].getsockname()[1]
    async with server:
        yield receiver


@asynccontextmanager
async def delivering(
    stage: Stage, allowed: Sequence[str] = ("127.0.0.0/8",), keys: Keyring | None = KEYS
) -> AsyncIterator[WebhookSender]:
    """A deliverer in place of the one that was assembled."""
    guard = EgressGuard(Home(), allowed)
    webhook_sender = WebhookSender(stage.engine, stage.clock, guard, Outgoing(), keys)
    del stage.server.deadlines._rules[DELIVERY.name]
    stage.server.deadlines.on_record(DELIVERY.name, webhook_sender.due, webhook_sender.decided)
    running = asyncio.ensure_future(webhook_sender.run())
    try:
        yield webhook_sender
    finally:
        running.cancel()
        await asyncio.wait([running])


async def settled(stage: Stage, *statuses: str, delivery_id: str = "d1") -> Delivery:
    """The delivery, when it has one of these statuses."""
    async with asyncio.timeout(90):
        while True:
            found = await DELIVERY.read(stage.engine.store, NAMESPACE, delivery_id)
            if found is not None and found.status in statuses:
                return found
            await asyncio.sleep(0)


def test_a_webhook_arrives_and_is_noted(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        async with receiving() as receiver, delivering(stage):
            await stage.play(Open(receiver.url))
            done = await settled(stage, "succeeded")
            [request] = receiver.requests
            assert request.startswith(b"POST /hook?x=1 HTTP/1.1\r\n")
            assert request.endswith(b'\r\n\r\n{"a":1}')
            assert receiver.header("host") == f"receiver.test:{receiver.port}"
            assert receiver.header("x-durablex-delivery") == "d1"
            assert receiver.header("x-durablex-signature") is None
            [attempt] = done.attempts
            assert (attempt.outcome, attempt.status_code) == ("succeeded", 200)
            assert attempt.response_snippet == "hi"
            assert attempt.response_headers == {"content-length": "2"}
            assert await stage.store.find_next_due(0) is None

    play(tmp_path / "perdure.db", story, deadlines=True)


def test_what_fails_is_sent_again_on_the_schedule(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        async with receiving() as receiver, delivering(stage):
            down = b"HTTP/1.1 503 Down\r\nContent-Length: 0\r\n\r\n"
            receiver.answers = [down, b"", b"rubbish\r\n\r\n", OK]
            await stage.play(Open(receiver.url))
            for delay in DELAYS[:3]:
                await settled(stage, "failed")
                await stage.clock.advance(seconds=delay / limits.SECOND)
                await receiver.arrived.wait()
                receiver.arrived.clear()
            done = await settled(stage, "succeeded")
            outcomes = [attempt.outcome for attempt in done.attempts]
            assert outcomes == ["http_error", "connection_error", "connection_error", "succeeded"]
            assert len(receiver.requests) == 4

    play(tmp_path / "perdure.db", story, deadlines=True)


def moved(to: str, status: int = 307) -> bytes:
    return f"HTTP/1.1 {status} Moved\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n".encode()


def test_a_redirect_is_followed_with_the_same_message(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        async with receiving() as receiver, receiving() as second, delivering(stage):
            receiver.answers = [moved("/other?y=2#part", 308), moved(second.url, 301)]
            await stage.play(Open(receiver.url))
            done = await settled(stage, "succeeded")
            assert [request.split(b" HTTP")[0] for request in receiver.requests] == [
                b"POST /hook?x=1",
                b"POST /other?y=2",
            ]
            assert second.requests[0].endswith(b'\r\n\r\n{"a":1}')
            assert second.header("host") == f"receiver.test:{second.port}"
            assert second.header("x-durablex-delivery") == "d1"
            [attempt] = done.attempts
            hop = f"http://receiver.test:{receiver.port}/other?y=2"
            assert attempt.redirects == (hop, second.url)

    play(tmp_path / "perdure.db", story, deadlines=True)


class Two:
    """Knows one name that is here, and says of every other that it is inside."""

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1"] if host == "receiver.test" else ["10.0.0.7"]


@pytest.mark.parametrize(
    ("target", "complaint"),
    [
        ("http://inside.test/", "inside.test is at 10.0.0.7"),
        ("http://169.254.169.254/latest", "169.254.169.254 is at 10.0.0.7"),
        ("ftp://receiver.test/", "only http and https"),
        ("http://user:pw@receiver.test/", "credentials"),
        ("http://[::1", "cannot be parsed"),
        ("http://receiver.test/" + "x" * 5_000, "characters"),
    ],
)
def test_a_redirect_is_vetted_like_the_first_address(
    tmp_path: Path, target: str, complaint: str
) -> None:
    async def story(stage: Stage) -> None:
        async with receiving() as receiver, delivering(stage) as webhook_sender:
            webhook_sender._guard = EgressGuard(Two(), ["127.0.0.0/8"])
            receiver.answers = [moved(target)]
            await stage.play(Open(receiver.url))
            dead = await settled(stage, "dead")
            [attempt] = dead.attempts
            assert attempt.outcome == "skipped"
            assert attempt.error is not None
            assert complaint in attempt.error
            assert len(receiver.requests) == 1

    play(tmp_path / "perdure.db", story, deadlines=True)


def test_redirects_have_an_end(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        async with receiving() as receiver, delivering(stage):
            receiver.answers = [moved(receiver.url)]
            await stage.play(Open(receiver.url))
            dead = await settled(stage, "dead")
            assert dead.attempts[0].outcome == "skipped"
            assert len(receiver.requests) == 1 + limits.DELIVERY_REDIRECTS_MAX

    play(tmp_path / "perdure.db", story, deadlines=True)


@pytest.mark.parametrize("answer", [moved("/other", 303), moved("", 302)])
def test_what_names_no_other_place_for_the_same_is_not_followed(
    tmp_path: Path, answer: bytes
) -> None:
    async def story(stage: Stage) -> None:
        async with receiving() as receiver, delivering(stage):
            receiver.answers = [answer]
            await stage.play(Open(receiver.url))
            dead = await settled(stage, "dead")
            assert dead.attempts[0].outcome == "http_error"
            assert len(receiver.requests) == 1

    play(tmp_path / "perdure.db", story, deadlines=True)


def test_nothing_is_sent_on_less_safely() -> None:
    with pytest.raises(Blocked, match="https to http"):
        next_hop("https://a.test/x", "http://a.test/x")
    assert next_hop("https://a.test/x", "//b.test/y") == "https://b.test/y"
    assert next_hop("http://a.test/x/z", "y") == "http://a.test/x/y"


def test_nothing_goes_inside(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        async with receiving() as receiver, delivering(stage, allowed=()):
            await stage.play(Open(receiver.url))
            dead = await settled(stage, "dead")
            [attempt] = dead.attempts
            assert attempt.outcome == "skipped"
            assert attempt.error == "receiver.test is at 127.0.0.1, which is not a public address"
            assert receiver.requests == []

    play(tmp_path / "perdure.db", story, deadlines=True)


def test_an_answer_is_read_up_to_a_bound(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        async with receiving() as receiver, delivering(stage):
            receiver.answers = [b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 3_000_000]
            await stage.play(Open(receiver.url))
            done = await settled(stage, "succeeded")
            snippet = done.attempts[0].response_snippet
            assert snippet == "x" * limits.DELIVERY_SNIPPET_BYTES_MAX

    play(tmp_path / "perdure.db", story, deadlines=True)


def endpoint(url: str, **fields: object) -> Endpoint:
    owner = secret_owner(NAMESPACE, "e1")
    values = {
        "id": "e1",
        "url": url,
        "event_kinds": ("run.failed",),
        "created_at": 1,
        "updated_at": 1,
        "sealed": KEYS.seal(SECRET, owner=owner, nonce=bytes(12)),
    }
    return Endpoint(**{**values, **fields})  # type: ignore[arg-type]


def announce(kind: str = "run.failed", app: str = "shop") -> Announce:
    return Announce(NAMESPACE, kind, app=app, run_id="r1", data=b'{"id":"r1"}')  # type: ignore[arg-type]


async def deliveries(stage: Stage) -> list[Delivery]:
    page = await DELIVERY.read_page(stage.engine.store, NAMESPACE, limit=99)
    return [delivery for _, delivery in page]


def test_whoever_subscribed_is_told_and_can_tell_that_it_is_us(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        async with receiving() as receiver, delivering(stage):
            await stage.play(AddEndpoint(NAMESPACE, endpoint(receiver.url)))
            await stage.play(announce("run.succeeded"))
            assert await deliveries(stage) == []
            await stage.play(announce())
            [told] = await deliveries(stage)
            await settled(stage, "succeeded", delivery_id=told.id)
            body = receiver.requests[0].split(b"\r\n\r\n", 1)[1]
            assert b'"type":"run.failed"' in body
            now = stage.clock.now() // limits.SECOND
            for name in ("x-durablex-signature", "x-duraton-signature"):
                header = receiver.header(name)
                assert verify(header, body, secrets=[SECRET], seconds=now) is None

    play(tmp_path / "perdure.db", story, deadlines=True)


def test_only_those_who_asked_are_told(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        for fields in (
            {"id": "off", "enabled": False},
            {"id": "other-app", "app": "other"},
            {"id": "other-kind", "event_kinds": ("run.cancelled",)},
            {"id": "mine", "app": "shop"},
        ):
            await stage.play(AddEndpoint(NAMESPACE, endpoint("http://x", **fields)))
        await stage.play(announce())
        assert [delivery.endpoint_id for delivery in await deliveries(stage)] == ["mine"]

    play(tmp_path / "perdure.db", story)


def test_an_endpoint_that_is_gone_gets_nothing_more(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        async with receiving() as receiver, delivering(stage):
            await stage.play(AddEndpoint(NAMESPACE, endpoint(receiver.url)))
            removed = ChangeEndpoint(NAMESPACE, "e1", lambda old, now: None)
            _, (was, now) = await stage.together(announce(), removed)
            assert (was.id, now) == ("e1", None)
            assert await stage.play(removed) == (None, None)
            [told] = await deliveries(stage)
            dead = await settled(stage, "dead", delivery_id=told.id)
            assert dead.attempts[0].outcome == "skipped"
            assert receiver.requests == []

    play(tmp_path / "perdure.db", story, deadlines=True)


def test_without_the_key_it_waits_for_a_server_that_has_it(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        async with receiving() as receiver, delivering(stage, keys=None):
            await stage.play(AddEndpoint(NAMESPACE, endpoint(receiver.url)))
            await stage.play(announce())
            [told] = await deliveries(stage)
            failed = await settled(stage, "failed", delivery_id=told.id)
            assert failed.attempts[0].outcome == "connection_error"
            assert receiver.requests == []

    play(tmp_path / "perdure.db", story, deadlines=True)


def test_a_try_that_is_not_on_disk_is_not_sent(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        async with receiving() as receiver, delivering(stage) as webhook_sender:
            await stage.play(Open(receiver.url))
            begun = webhook_sender.due(DELIVERY.key(NAMESPACE, "d1"))
            assert isinstance(begun, BeginDelivery)
            stage.store.fail_commits(disk_full())
            [reply] = await stage.together(begun)
            assert isinstance(reply, Exception)
            webhook_sender.decided(DELIVERY.key(NAMESPACE, "d1"), begun, False)
            assert webhook_sender._begun.empty()
            assert await stage.play(Redeliver(NAMESPACE, "nobody")) is None

    play(tmp_path / "perdure.db", story)


def test_where_too_many_are_under_way_the_others_come_back_later(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.play(Open("http://receiver.test"))
        key = DELIVERY.key(NAMESPACE, "d1")
        begun = BeginDelivery(key, has_room=False)
        assert await stage.play(begun) is True
        assert begun.begun is None
        waiting = await DELIVERY.read(stage.engine.store, NAMESPACE, "d1")
        assert waiting is not None
        assert (waiting.status, waiting.attempt_count) == ("pending", 0)
        assert await stage.store.find_next_due(0) == stage.clock.now() + limits.SECOND
        again = BeginDelivery(key, has_room=True)
        await stage.play(again)
        assert again.begun is not None
        assert again.begun.attempt_count == 1

    play(tmp_path / "perdure.db", story)
