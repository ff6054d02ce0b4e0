"""Webhooks over the wire: configured, sent, listed, received, replayed."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.core import limits
from perdure.core.intake.signature import sign, verify
from perdure.features.webhooks.loops import WebhookSender
from tests.support.http import PATIENCE_SECONDS, Answer, Json, Wire, a_wire
from tests.support.runner import a_runner, broke, op, rows, settled, start, workflow
from tests.support.tables import empty

KEYS = ("k" * 32,)


class Receiver:
    """A server of somebody else, on the loop of the wire."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.heads: list[str] = []
        self.status = 200
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(head.lower().split("content-length:")[1].split("\r\n")[0])
        self.bodies.append(await reader.readexactly(length))
        self.heads.append(head)
        writer.write(f"HTTP/1.1 {self.status} X\r\nContent-Length: 2\r\n\r\nhi".encode())
        await writer.drain()
        writer.close()

    def header(self, name: str) -> str | None:
        for line in self.heads[-1].split("\r\n"):
            told, _, value = line.partition(": ")
            if told.lower() == name:
                return value
        return None


@pytest.fixture
def wire(wire_store: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Wire]:
    """A server that may send to this machine."""
    settings: dict[str, Any] = {"webhook_keys": KEYS, "egress_allow": ("127.0.0.0/8",)}
    if wire_store == "postgres":
        settings["store"] = request.getfixturevalue("common_database")
        empty(settings["store"])
    with a_wire(tmp_path, **settings) as wire:
        running = wire.run(_begin(wire))
        yield wire
        running.cancel()


async def _begin(wire: Wire) -> "asyncio.Task[None]":
    return asyncio.create_task(wire.find_loop(WebhookSender).run())


@pytest.fixture
def receiver(wire: Wire) -> Iterator[Receiver]:
    receiver = Receiver()

    async def begin() -> asyncio.Server:
        return await asyncio.start_server(receiver.serve, "127.0.0.1", 0)

    server = wire.run(begin())
    receiver.port = server.sockets[0].getsockname()[1]
    yield receiver
    server.close()


def endpoint(wire: Wire, url: str, **members: Any) -> Json:
    body = {"url": url, "eventKinds": ["run.failed", "run.succeeded"], **members}
    return wire.call("POST", "/webhook-endpoints", body).ok(201)


def source(wire: Wire, **members: Any) -> Json:
    return wire.call("POST", "/webhook-sources", {"eventName": "pay.done", **members}).ok(201)


def delivered(wire: Wire, status: str, count: int = 1) -> list[Json]:
    """The deliveries of a status, once there are so many."""

    async def wait() -> list[Json]:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                answer = await wire.send("GET", f"/webhook-deliveries?status={status}")
                found: list[Json] = json.loads(answer.content)
                if len(found) >= count:
                    return found
                await asyncio.sleep(0.001)

    return wire.run(wait())


# Endpoints and deliveries -------------------------------------------------------------------------


def test_a_secret_is_shown_once_and_is_not_on_the_disk(wire: Wire) -> None:
    made = endpoint(wire, "https://example.com/hook", name="books", app="shop")
    assert made["secret"].startswith("whsec_")
    assert made["eventKinds"] == ["run.succeeded", "run.failed"]
    shown = {name: value for name, value in made.items() if name != "secret"}
    assert wire.call("GET", f"/webhook-endpoints/{made['id']}").ok() == shown
    assert rows(wire, "/webhook-endpoints") == [shown]
    assert made["secret"].encode() not in repr(wire.stored()).encode()

    changed = wire.call(
        "PATCH", f"/webhook-endpoints/{made['id']}", {"enabled": False, "rotateSecret": True}
    ).ok()
    assert changed["enabled"] is False
    assert changed["secret"] != made["secret"]
    assert changed["name"] == "books"

    wire.call("DELETE", f"/webhook-endpoints/{made['id']}").ok()
    wire.call("DELETE", f"/webhook-endpoints/{made['id']}").refused(404, "webhook_not_found")
    assert rows(wire, "/webhook-endpoints") == []


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"url": "ftp://x", "eventKinds": ["run.failed"]}, "url: only http and https"),
        ({"url": "http://u:p@x", "eventKinds": ["run.failed"]}, "url: the URL has credentials"),
        ({"url": "http://x", "eventKinds": []}, "eventKinds must be some of"),
        ({"url": "http://x", "eventKinds": ["run.odd"]}, "eventKinds must be some of"),
        ({"url": "http://x", "eventKinds": ["custom"]}, "eventKinds must be some of"),
        ({"url": "http://x", "eventKinds": ["run.failed"], "secret": "x"}, "secret has 8 to 255"),
        ({"url": "http://x", "eventKinds": ["run.failed"], "name": "x" * 256}, "name has more"),
        ({"eventKinds": ["run.failed"]}, "missing required field `url`"),
    ],
)
def test_a_bad_endpoint_is_refused(wire: Wire, body: Json, why: str) -> None:
    with wire.nothing_changes():
        refused = wire.call("POST", "/webhook-endpoints", body)
        assert why in refused.refused(400, "validation_failed")["error"]


def test_whoever_subscribed_hears_of_ends(wire: Wire, receiver: Receiver) -> None:
    made = endpoint(wire, receiver.url)
    endpoint(wire, receiver.url, app="other")
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order", {"n": 1})
    runner.next().returned({"done": True})
    settled(wire, run_id, "succeeded")

    [delivery] = delivered(wire, "succeeded")
    assert (delivery["endpointId"], delivery["sourceRunId"]) == (made["id"], run_id)
    [body] = receiver.bodies
    told = json.loads(body)
    assert (told["id"], told["type"]) == (delivery["id"], "run.succeeded")
    assert told["data"]["id"] == run_id
    assert told["data"]["result"] == {"done": True}
    assert delivery["payload"] == told
    now = wire.clock.now() // limits.SECOND
    signature = receiver.header("x-duraton-signature")
    assert verify(signature, body, secrets=[made["secret"]], seconds=now) is None

    detail = wire.call("GET", f"/webhook-deliveries/{delivery['id']}").ok()
    [attempt] = detail["attempts"]
    assert (attempt["outcome"], attempt["statusCode"]) == ("succeeded", 200)
    assert attempt["responseSnippet"] == "hi"
    stats = rows(wire, "/webhook-endpoints/stats")
    assert [(row["delivered"], row["succeeded"], row["failed"]) for row in stats] == [
        (1, 1, 0),
        (0, 0, 0),
    ]


def test_a_failed_run_tells_of_its_step_and_of_itself(wire: Wire, receiver: Receiver) -> None:
    endpoint(wire, receiver.url, eventKinds=["run.failed", "step.failed"])
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")
    runner.next().found(broke("charge", "card declined"))
    settled(wire, run_id, "failed")
    delivered(wire, "succeeded", 2)
    told = {json.loads(body)["type"]: json.loads(body)["data"] for body in receiver.bodies}
    assert set(told) == {"run.failed", "step.failed"}
    assert told["run.failed"]["error"]["message"] == "card declined"
    assert (told["step.failed"]["runId"], told["step.failed"]["name"]) == (run_id, "charge")


def test_a_step_sends_a_webhook_once(wire: Wire, receiver: Receiver) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")
    post = op("Webhook", "tell", webhookUrl=receiver.url, data={"a": [1]})
    runner.next().found(post)
    second = runner.next()
    assert second.memo("tell") == {"data": None}
    second.found(post, op("Sleep", "nap", sleepMs=1))
    settled(wire, run_id, "waiting")
    [delivery] = delivered(wire, "succeeded")
    assert (delivery["eventKind"], delivery["sourceRunId"]) == ("custom", run_id)
    assert [json.loads(body) for body in receiver.bodies] == [{"a": [1]}]
    assert receiver.header("x-durablex-signature") is None


def test_a_step_cannot_send_inside(tmp_path: Path) -> None:
    with a_wire(tmp_path) as wire:
        running = wire.run(_begin(wire))
        runner = a_runner(wire, workflow("order"))
        start(wire, "order")
        url = f"http://127.0.0.1:{wire.port}/healthz"
        runner.next().found(op("Webhook", "tell", webhookUrl=url))
        [dead] = delivered(wire, "dead")
        detail = wire.call("GET", f"/webhook-deliveries/{dead['id']}").ok()
        assert detail["attempts"][0]["outcome"] == "skipped"
        assert "not a public address" in detail["attempts"][0]["error"]
        running.cancel()


def test_redelivery_and_pages(wire: Wire, receiver: Receiver) -> None:
    receiver.status = 404
    runner = a_runner(wire, workflow("order"))
    start(wire, "order")
    runner.next().found(
        *(op("Webhook", f"tell-{n}", webhookUrl=receiver.url, data=n) for n in range(3))
    )
    dead = delivered(wire, "dead", 3)
    first = wire.call("GET", "/webhook-deliveries?limit=2")
    assert [row["payload"] for row in json.loads(first.content)] == [2, 1]
    cursor = first.headers["x-next-cursor"]
    second = wire.call("GET", f"/webhook-deliveries?limit=2&cursor={cursor}")
    assert [row["payload"] for row in json.loads(second.content)] == [0]
    assert "x-next-cursor" not in second.headers

    receiver.status = 200
    path = f"/webhook-deliveries/{dead[0]['id']}/redeliver"
    assert wire.call("POST", path).ok(202)["status"] in ("pending", "delivering", "succeeded")
    [again] = delivered(wire, "succeeded")
    assert (again["id"], again["attemptCount"]) == (dead[0]["id"], 2)
    wire.call("POST", "/webhook-deliveries/nobody/redeliver").refused(404, "webhook_not_found")
    wire.call("GET", "/webhook-deliveries/nobody").refused(404, "webhook_not_found")
    for bad in ("status=odd", "limit=0", "cursor=odd"):
        wire.call("GET", f"/webhook-deliveries?{bad}").refused(400, "validation_failed")


# Sources ------------------------------------------------------------------------------------------


def send(wire: Wire, made: Json, body: bytes = b'{"id":"evt_1","n":1}', **options: Any) -> Answer:
    """A webhook of the source, signed unless it says otherwise."""
    seconds = wire.clock.now() // limits.SECOND + options.get("late", 0)
    header = options.get("header", "X-Durablex-Signature")
    signature = sign(str(options.get("secret", made["secret"])), body, seconds)
    headers = {} if header is None else {header: signature}
    return wire.call("POST", f"/webhooks/{made['token']}", content=body, headers=headers)


def test_a_webhook_becomes_an_event(wire: Wire) -> None:
    made = source(wire, name="bank")
    assert len(made["token"]) == 32
    assert made["receiveUrl"].endswith(f"/webhooks/{made['token']}")
    runner = a_runner(wire, workflow("order", triggers=[{"event": "pay.done"}]))

    taken = send(wire, made).ok(202)
    assert runner.next().body["event"] == {
        "name": "pay.done",
        "data": {"id": "evt_1", "n": 1},
    }
    [row] = rows(wire, "/webhook-source-deliveries")
    assert (row["status"], row["sourceId"]) == ("ingested", made["id"])
    assert (row["eventId"], row["runId"]) == (taken["eventId"], taken["runId"])

    assert send(wire, made).ok(202)["deduped"] is True
    assert send(wire, made, header="X-Duraton-Signature").ok(202)["deduped"] is True
    assert "deduped" in [row["status"] for row in rows(wire, "/webhook-source-deliveries")]
    wire.advance(seconds=1)
    assert send(wire, made).ok(202)["deduped"] is False


def test_stripe_events_are_known_by_their_own_id(wire: Wire) -> None:
    made = source(wire, scheme="stripe")
    send(wire, made).refused(401, "webhook_unauthorized")
    assert send(wire, made, header="Stripe-Signature").ok(202)["deduped"] is False
    wire.advance(seconds=60)
    again = send(wire, made, b'{"id":"evt_1","n":2}', header="Stripe-Signature")
    assert again.ok(202)["deduped"] is True
    other = send(wire, made, b'{"id":"evt_2"}', header="Stripe-Signature")
    assert other.ok(202)["deduped"] is False


@pytest.mark.parametrize(
    ("sent", "status", "reason", "noted", "failure"),
    [
        ({"header": None}, 401, "webhook_unauthorized", "unauthorized", "missing_signature"),
        ({"secret": "wrong"}, 401, "webhook_unauthorized", "unauthorized", "signature_mismatch"),
        ({"late": 301}, 401, "webhook_unauthorized", "unauthorized", "timestamp_out_of_tolerance"),
        ({"body": b"{"}, 400, "malformed_json", "invalid", None),
        ({"body": b"\xff"}, 400, "malformed_json", "invalid", None),
        ({"body": b"[" * 9_000}, 400, "malformed_json", "invalid", None),
        ({"body": b'"' + b"x" * 600_000 + b'"'}, 413, "event_too_large", "too_large", None),
    ],
    ids=["unsigned", "forged", "late", "no json", "no text", "deep", "large"],
)
def test_what_may_not_come_in_is_refused_and_noted(
    wire: Wire, sent: Json, status: int, reason: str, noted: str, failure: str | None
) -> None:
    made = source(wire)
    send(wire, made, **sent).refused(status, reason)
    [row] = rows(wire, "/webhook-source-deliveries")
    assert (row["status"], row.get("failureReason")) == (noted, failure)
    assert rows(wire, "/events") == []
    detail = wire.call("GET", f"/webhook-source-deliveries/{row['id']}").ok()
    assert detail["replayable"] is False
    replay = wire.call("POST", f"/webhook-source-deliveries/{row['id']}/replay")
    replay.refused(409, "webhook_not_replayable")


def test_unknown_and_switched_off_addresses_are_not_told_apart(wire: Wire) -> None:
    made = source(wire)
    wire.call("PATCH", f"/webhook-sources/{made['id']}", {"enabled": False}).ok()
    with wire.nothing_changes():
        off = send(wire, made).refused(404, "webhook_not_found")
        unknown = send(wire, {**made, "token": "0" * 32}).refused(404, "webhook_not_found")
        assert off == unknown
        send(wire, {**made, "token": "x" * 3_000}).refused(404, "webhook_not_found")


def test_a_webhook_is_taken_in_once_more_on_request(wire: Wire) -> None:
    made = source(wire)
    taken = send(wire, made).ok(202)
    [row] = rows(wire, "/webhook-source-deliveries")
    path = f"/webhook-source-deliveries/{row['id']}"
    again = wire.call("POST", f"{path}/replay").ok()
    assert (again["deliveryId"], again["status"]) == (row["id"], "ingested")
    assert again["eventId"] != taken["eventId"]
    detail = wire.call("GET", path).ok()
    assert [one["trigger"] for one in detail["attempts"]] == ["initial", "replay"]
    assert (detail["attemptCount"], detail["replayable"]) == (2, True)
    assert detail["payload"] == {"id": "evt_1", "n": 1}
    assert len(rows(wire, "/events")) == 2
    wire.call("POST", "/webhook-source-deliveries/x/replay").refused(404, "webhook_not_found")


def test_sources_are_configured_under_both_names(wire: Wire) -> None:
    made = wire.call("POST", "/webhook-receivers", {"event": "pay.done", "app": "shop"}).ok(201)
    assert (made["slug"], made["event"]) == (made["token"], "pay.done")
    shown = {name: value for name, value in made.items() if name != "secret"}
    assert rows(wire, "/webhook-sources") == rows(wire, "/webhook-receivers") == [shown]
    patch = {"eventName": "pay.failed", "rotateSecret": True}
    changed = wire.call("PATCH", f"/webhook-sources/{made['id']}", patch).ok()
    assert changed["eventName"] == "pay.failed"
    send(wire, made).refused(401, "webhook_unauthorized")
    send(wire, changed).ok(202)
    wire.call("DELETE", f"/webhook-receivers/{made['id']}").ok()
    send(wire, changed).refused(404, "webhook_not_found")
    wire.call("GET", f"/webhook-sources/{made['id']}").refused(404, "webhook_not_found")
    for body in ({}, {"eventName": " "}, {"eventName": "duraton/x"}, {"eventName": "x" * 256}):
        wire.call("POST", "/webhook-sources", body).refused(400, "validation_failed")


def test_without_a_key_nothing_is_configured(tmp_path: Path) -> None:
    with a_wire(tmp_path) as wire:
        bodies: dict[str, Json] = {
            "/webhook-endpoints": {"url": "http://x", "eventKinds": ["run.failed"]},
            "/webhook-sources": {"eventName": "x"},
        }
        with wire.nothing_changes():
            for path, body in bodies.items():
                wire.call("POST", path, body).refused(403, "webhook_keys_missing")
                assert rows(wire, path) == []


def test_a_server_without_the_key_says_so_to_the_sender(tmp_path: Path) -> None:
    with a_wire(tmp_path, webhook_keys=KEYS) as wire:
        made = source(wire)
    with a_wire(tmp_path) as wire:
        send(wire, made).refused(503, "webhook_misconfigured")
        [row] = rows(wire, "/webhook-source-deliveries")
        assert row["status"] == "misconfigured"


@pytest.mark.parametrize("host", ["10.0.0.1", "169.254.169.254", "0xa000001", "[::ffff:10.0.0.1]"])
def test_an_endpoint_at_an_inner_address_is_refused_when_it_is_configured(
    wire: Wire, host: str
) -> None:
    body = {"url": f"http://{host}/hook", "eventKinds": ["run.failed"]}
    with wire.nothing_changes():
        answer = wire.call("POST", "/webhook-endpoints", body)
    assert answer.status == 400, answer
    assert "not a public address" in answer.body["message"]


def test_refused_webhooks_are_stored_under_a_bound_and_for_a_week(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Anybody who knows an address can have something refused."""
    monkeypatch.setattr(
        "perdure.features.webhooks.incoming_operations.REFUSED_WEBHOOKS_KEPT_MAX", 3
    )
    first, second = source(wire), source(wire)
    send(wire, first)
    send(wire, second, header=None).refused(401, "webhook_unauthorized")
    refused = []
    for _ in range(10):
        send(wire, first, header=None).refused(401, "webhook_unauthorized")
        [latest, *_] = rows(wire, "/webhook-source-deliveries")
        refused.append(latest["id"])
        wire.advance(seconds=1)

    kept = rows(wire, f"/webhook-source-deliveries?source={first['id']}")

    assert [row["id"] for row in kept if row["status"] == "unauthorized"] == refused[:-4:-1]
    assert [row["status"] for row in kept].count("ingested") == 1
    assert len(rows(wire, f"/webhook-source-deliveries?source={second['id']}")) == 1
    assert "only the latest 3 are stored" in caplog.text
    wire.advance(seconds=7 * 86_400 + 1)
    [left] = rows(wire, "/webhook-source-deliveries")
    assert left["status"] == "ingested"
    assert [row for row in wire.stored()["record"] if row[0] == "webhook_refusals"] == []
    assert wire.stored()["deadline"] == []
