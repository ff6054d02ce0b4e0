"""Runners that serve HTTP: a real server on a real port, answered by the test."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from perdure.core.intake.signature import verify
from perdure.dispatch.egress import RunnerGuard
from tests.support.http import PATIENCE_SECONDS, Json, Wire
from tests.support.runner import op, ran, rows, settled, start, workflow


class Posted:
    """A request that a runner got, and waits for its answer."""

    def __init__(self, wire: Wire, head: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        self._wire = wire
        self._writer = writer
        line, *lines = head.strip().split("\r\n")
        self.line = line
        self.headers = {k.lower(): v for k, v in (one.split(": ", 1) for one in lines)}
        self.content = body
        self.body: Json = json.loads(body)

    def answer(self, status: int, body: Any) -> None:
        self.answer_bytes(status, json.dumps(body).encode())

    def answer_bytes(self, status: int, content: bytes) -> None:
        head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(content)}\r\n\r\n"
        self._writer.write(head.encode() + content)
        self._wire.run(self._writer.drain())

    def hang_up(self) -> None:
        self._writer.close()


class ServedRunner:
    """Listens where a runner would."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._posts: asyncio.Queue[Posted] = asyncio.Queue()
        self.connections = 0
        self._server = wire.run(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/invoke?x=1"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = int(head.lower().split("content-length: ")[1].split("\r\n")[0])
                body = await reader.readexactly(length)
                self._posts.put_nowait(Posted(self._wire, head, body, writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def register(self, *workflows: Json, **members: Any) -> Json:
        body = {"app": "shop", "url": self.url, "workflows": list(workflows), **members}
        return self._wire.call("POST", "/register", body).ok()

    def next(self) -> Posted:
        return self._wire.run(asyncio.wait_for(self._posts.get(), PATIENCE_SECONDS))

    def close(self) -> None:
        self._server.close()


@pytest.fixture
def served(wire: Wire) -> Iterator[ServedRunner]:
    runner = ServedRunner(wire)
    yield runner
    runner.close()


def test_a_pass_is_posted_with_the_version_of_the_protocol(
    wire: Wire, served: ServedRunner
) -> None:
    told = served.register(workflow("order"), runner="node-7")
    assert told == {
        "ok": True,
        "app": "shop",
        "runner": "node-7",
        "protocolVersion": 1,
        "heartbeatMs": 30_000,
    }
    run_id = start(wire, "order", {"orderId": "A1"})

    post = served.next()

    assert post.line == "POST /invoke?x=1 HTTP/1.1"
    assert post.headers["content-type"] == "application/json"
    assert post.headers["x-durablex-protocol"] == post.headers["x-duraton-protocol"] == "1"
    assert "x-durablex-signature" not in post.headers
    assert post.body["event"] == {"name": "order", "data": {"orderId": "A1"}}
    assert post.body["ctx"]["workflow"] == "order"
    post.answer(206, {"opcodes": [ran("charge", {"chargeId": "ch_A1"})], "logs": []})
    post = served.next()
    assert list(post.body["steps"].values()) == [{"data": {"chargeId": "ch_A1"}}]
    post.answer(200, {"data": "done", "logs": []})
    assert settled(wire, run_id, "succeeded")["executedBy"] == "node-7"
    assert served.connections == 1
    (row,) = rows(wire, "/runners")
    assert (row["url"], row["live"]) == (served.url, True)


def test_a_runner_without_an_id_is_known_by_its_url(wire: Wire, served: ServedRunner) -> None:
    assert served.register(workflow("order"))["runner"] == served.url
    run_id = start(wire, "order", runner=served.url)
    served.next().answer(200, {"data": None})
    settled(wire, run_id, "succeeded")


def test_a_runner_that_is_away_is_tried_again(wire: Wire, served: ServedRunner) -> None:
    served.register(workflow("order"))
    run_id = start(wire, "order")
    served.next().hang_up()
    settled(wire, run_id, "running", errorCount=1)
    wire.advance(seconds=0.3)
    served.next().answer_bytes(200, b"<html>")
    settled(wire, run_id, "running", errorCount=2)
    wire.advance(seconds=0.6)
    served.next().answer(307, {})
    settled(wire, run_id, "running", errorCount=3)
    wire.advance(seconds=1.1)
    served.next().answer(200, {"data": 1})

    assert settled(wire, run_id, "succeeded")["errorCount"] == 3


def test_an_answer_that_is_too_large_is_not_asked_for_again(
    wire: Wire, served: ServedRunner
) -> None:
    served.register(workflow("order"))
    run_id = start(wire, "order")
    served.next().answer(200, {"data": "x" * 1_100_000})

    assert "1048576" in settled(wire, run_id, "failed")["error"]["message"]


def test_a_runner_that_was_not_heard_of_for_long_gets_nothing(
    wire: Wire, served: ServedRunner
) -> None:
    served.register(workflow("order"))
    wire.advance(seconds=91)
    wire.run(wire.server.serve.look())
    run_id = start(wire, "order")
    settled(wire, run_id, "queued")
    assert [row["live"] for row in rows(wire, "/runners")] == [False]

    served.register(workflow("order"))

    served.next().answer(200, {"data": 1})
    settled(wire, run_id, "succeeded")


def test_an_engine_that_starts_again_remembers_who_serves(wire: Wire, served: ServedRunner) -> None:
    served.register(workflow("order"))
    run_id = start(wire, "order")
    served.next().answer(206, {"opcodes": [op("Sleep", "nap", sleepMs=1_000)]})
    settled(wire, run_id, "waiting")

    wire.restart()
    wire.run(wire.server.serve.look())
    wire.advance(seconds=2)

    served.next().answer(200, {"data": 1})
    settled(wire, run_id, "succeeded")


def test_passes_are_signed_when_there_is_a_key(wire: Wire, served: ServedRunner) -> None:
    wire.server.serve.signing_key = "s3cret"
    served.register(workflow("order"))
    start(wire, "order")

    post = served.next()

    seconds = wire.clock.now() // 1_000_000
    for name in ("x-durablex-signature", "x-duraton-signature"):
        assert verify(post.headers[name], post.content, secrets=["s3cret"], seconds=seconds) is None


@pytest.mark.parametrize(
    "body",
    [
        {"app": "shop", "workflows": []},
        {"app": "shop", "workflows": [], "url": "ftp://x/y"},
        {"app": "", "workflows": [], "url": "http://x/y"},
        {"app": "shop", "workflows": [{"name": ""}], "url": "http://x/y"},
        {"app": "shop", "workflows": [], "url": "http://x/y", "protocolVersion": 2},
        {"app": "shop", "workflows": [], "url": "http://x/y", "protocolVersion": "1"},
        [],
    ],
)
def test_a_registration_that_makes_no_sense_is_refused(wire: Wire, body: Any) -> None:
    with wire.nothing_changes():
        answer = wire.call("POST", "/register", body)
    assert answer.status == 400, answer
    assert answer.body["error"]


@pytest.mark.parametrize("host", ["169.254.169.254", "[fd00:ec2::254]", "0xa9fea9fe"])
def test_a_runner_at_a_metadata_address_is_refused(wire: Wire, host: str) -> None:
    body = {"app": "shop", "workflows": [workflow("order")], "url": f"http://{host}/invoke"}
    with wire.nothing_changes():
        answer = wire.call("POST", "/register", body)
    assert (answer.status, answer.body["reason"]) == (400, "runner_address_refused")


class Names:
    """A resolver whose answers a test chooses."""

    def __init__(self, **names: str) -> None:
        self.names = names
        self.asked = 0

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        self.asked += 1
        return [self.names[host]]


def test_a_pass_goes_to_the_address_that_was_checked(wire: Wire, served: ServedRunner) -> None:
    wire.server.serve._guard = RunnerGuard(Names(runner="127.0.0.1"), ["127.0.0.0/8"])
    served.url = f"http://runner:{served.port}/invoke"
    served.register(workflow("order"))
    start(wire, "order")
    posted = served.next()
    assert posted.headers["host"] == f"runner:{served.port}"


def test_a_name_that_leads_inside_later_is_not_posted_to(wire: Wire, served: ServedRunner) -> None:
    names = Names(runner="127.0.0.1")
    wire.server.serve._guard = RunnerGuard(names, ["127.0.0.0/8"])
    served.url = f"http://runner:{served.port}/invoke"
    served.register(workflow("order"))
    names.names["runner"] = "169.254.169.254"
    start(wire, "order")
    wire.until(lambda: names.asked > 0)
    wire.until(lambda: not wire.server.serve._posting)
    assert served.connections == 0


def test_a_runner_that_cannot_fetch_gets_memos_of_many_megabytes(
    wire: Wire, served: ServedRunner
) -> None:
    served.register(workflow("order"))
    run_id = start(wire, "order")
    for number in range(4):
        served.next().answer(206, {"opcodes": [ran(f"s{number}", "x" * 700_000)]})

    post = served.next()

    assert "offload" not in post.body["ctx"]
    assert [memo["data"] for memo in post.body["steps"].values()] == ["x" * 700_000] * 4
    post.answer(200, {"data": 1})
    settled(wire, run_id, "succeeded")


def test_a_memo_beyond_what_may_be_posted_fails_the_run(
    wire: Wire, served: ServedRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.protocols.durablex.serve.SERVED_PASS_BYTES_MAX", 1_000_000)
    served.register(workflow("order"))
    run_id = start(wire, "order")
    for number in range(2):
        served.next().answer(206, {"opcodes": [ran(f"s{number}", "x" * 700_000)]})

    assert settled(wire, run_id, "failed")["error"]["reason"] == "memo_too_large"


def test_a_served_runner_fetches_what_it_is_referred_to(wire: Wire, served: ServedRunner) -> None:
    """What it can do may change with a registration of the same workflows."""
    served.register(workflow("order"))
    run_id = start(wire, "order")
    served.next().answer(206, {"opcodes": [ran("s", "x" * 700_000)]})
    post = served.next()
    served.register(workflow("order"), offload=True)
    post.answer(206, {"opcodes": [ran("t", 1)]})

    post = served.next()

    large, small = post.body["steps"].values()
    assert small == {"data": 1}
    assert large["ref"]["size"] == 700_002
    answer = wire.call("GET", f"/runs/{run_id}/payloads/{large['ref']['id']}")
    assert json.loads(answer.content) == "x" * 700_000
    post.answer(200, {"data": 1})
    settled(wire, run_id, "succeeded")
