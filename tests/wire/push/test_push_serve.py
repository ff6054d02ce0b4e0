"""Runners that serve HTTP: a real server on a real port, answered by the test."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from perdure.core.intake.signature import fingerprint, verify
from perdure.dispatch.egress import RunnerGuard
from tests.support.http import PATIENCE_SECONDS, Json, Wire
from tests.support.runner import a_runner, op, ran, rows, settled, show, start, workflow


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
        wire.loop.abort_at_end(self.abort)
        self._writers: list[asyncio.StreamWriter] = []
        self._server = wire.run(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/invoke?x=1"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
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

    def leave(self, **members: Any) -> Json:
        body = {"app": "shop", "url": self.url, **members}
        return self._wire.call("POST", "/deregister", body).ok()

    def next(self) -> Posted:
        return self._wire.run(asyncio.wait_for(self._posts.get(), PATIENCE_SECONDS))

    def close(self) -> None:
        self._server.close()

    def abort(self) -> None:
        """End every connection at once."""
        self._server.close()
        while self._writers:
            self._writers.pop().transport.abort()


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


# Endpoints that fail ------------------------------------------------------------------------------


def a_dead_url(wire: Wire) -> str:
    """A URL where nobody listens."""
    runner = ServedRunner(wire)
    runner.close()
    return runner.url


def register_at(wire: Wire, url: str, *workflows: Json, **members: Any) -> None:
    body = {"app": "shop", "url": url, "workflows": list(workflows), **members}
    wire.call("POST", "/register", body).ok()


def attempted(wire: Wire, run_id: str) -> Json:
    """The run, once an endpoint has failed and its pass waits for another."""

    async def wait() -> Json:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                run = (await wire.send("GET", f"/runs/{run_id}")).body
                cause = run.get("nextCause") or {}
                if "lastFailure" in cause and cause["kind"] == "workflow_task_ready":
                    return run

    return wire.run(wait())


def test_a_url_where_nobody_listens_costs_no_run_a_try(wire: Wire, served: ServedRunner) -> None:
    for number in range(3):
        register_at(wire, a_dead_url(wire), workflow("order"), runner=f"dead-{number}")
    served.register(workflow("order"), runner="alive")

    runs = [start(wire, "order", number) for number in range(60)]

    for _ in runs:
        served.next().answer(200, {"data": None})
    for run_id in runs:
        run = settled(wire, run_id, "succeeded")
        assert (run["errorCount"], run["executedBy"]) == (0, "alive")


def test_a_run_waits_while_its_only_runner_cannot_be_reached(wire: Wire) -> None:
    url = a_dead_url(wire)
    register_at(wire, url, workflow("order"))
    run_id = start(wire, "order")

    run = attempted(wire, run_id)
    for _ in range(20):
        wire.advance(seconds=11)
        register_at(wire, url, workflow("order"))
        run = attempted(wire, run_id)

    assert (run["status"], run["errorCount"]) == ("running", 0)
    assert "could not be reached" in run["waitReason"]
    assert url in run["nextCause"]["lastFailure"]
    a_runner(wire, workflow("order")).next().returned("at last")
    assert settled(wire, run_id, "succeeded")["result"] == "at last"


def test_a_runner_that_is_back_is_tried_after_its_rest(wire: Wire, served: ServedRunner) -> None:
    served.register(workflow("order"))
    run_id = start(wire, "order")
    served.next().answer_bytes(503, b"<html>busy</html>")
    attempted(wire, run_id)
    wire.advance(seconds=0.3)
    served.next().answer(503, {"error": "only just starting"})
    run = attempted(wire, run_id)
    assert "only just starting" in run["nextCause"]["lastFailure"]

    served.register(workflow("order"))  # it says that it is there: no need to wait any longer
    served.next().answer(200, {"data": 1})

    assert settled(wire, run_id, "succeeded")["errorCount"] == 0


@pytest.mark.parametrize("status", [401, 403, 502, 503])
def test_what_speaks_of_the_endpoint_goes_to_another(
    wire: Wire, served: ServedRunner, status: int
) -> None:
    served.register(workflow("order"))
    run_id = start(wire, "order")
    post = served.next()
    other = a_runner(wire, workflow("order"), runner="other")

    post.answer(status, {"error": "signature_mismatch"})

    other.next().returned()
    run = settled(wire, run_id, "succeeded")
    assert (run["errorCount"], run["executedBy"]) == (0, "other")


def test_a_pass_that_is_lost_with_its_runner_every_time_ends_its_run(
    wire: Wire, served: ServedRunner
) -> None:
    """It may be what kills them: somebody must hear of it."""
    served.register(workflow("order"))
    run_id = start(wire, "order")
    for number in range(1, 13):
        post = served.next()
        if number == 12:
            post.answer(504, {})
        else:
            post.hang_up()
        settled(wire, run_id, "failed" if number == 12 else "running", errorCount=number)
        wire.advance(seconds=10.5)
        served.register(workflow("order"))

    assert "504" in show(wire, run_id)["error"]["message"]


def test_a_pass_that_gets_on_forgets_what_was_lost(wire: Wire, served: ServedRunner) -> None:
    served.register(workflow("order"))
    run_id = start(wire, "order")
    for number in range(24):
        if number and number % 8 == 0:
            # A connection that was kept may end at any moment: the pass is posted again at once.
            served.next().hang_up()
        served.next().hang_up()
        settled(wire, run_id, "running", errorCount=number + 1)
        wire.advance(seconds=10.5)
        served.register(workflow("order"))
        if number % 8 == 7:
            served.next().answer(206, {"opcodes": [ran(f"step {number}")]})
    served.next().answer(200, {"data": 1})

    assert settled(wire, run_id, "succeeded")["errorCount"] == 24


def test_a_runner_that_takes_its_leave_gets_nothing_more(wire: Wire, served: ServedRunner) -> None:
    served.register(workflow("order"), runner="r1")
    first = start(wire, "order")
    post = served.next()

    assert served.leave(runner="r1") == {"ok": True}
    second = start(wire, "order")

    assert show(wire, second)["status"] == "queued"
    assert [row["live"] for row in rows(wire, "/runners")] == [False]
    post.answer(200, {"data": "what it had"})
    assert settled(wire, first, "succeeded")["result"] == "what it had"
    served.register(workflow("order"), runner="r1")
    served.next().answer(200, {"data": None})
    settled(wire, second, "succeeded")


def test_a_url_stays_while_another_process_stands_behind_it(
    wire: Wire, served: ServedRunner
) -> None:
    served.register(workflow("order"), instance="a")
    served.register(workflow("order"), instance="b")

    served.leave(instance="b")
    run_id = start(wire, "order")
    served.next().answer(200, {"data": None})
    settled(wire, run_id, "succeeded")

    served.leave(instance="a")
    assert show(wire, start(wire, "order"))["status"] == "queued"
    assert served.leave(instance="a") == {"ok": True}, "said twice, it does no harm"


def test_who_does_not_say_which_process_it_is_speaks_for_all(
    wire: Wire, served: ServedRunner
) -> None:
    served.register(workflow("order"), instance="a")
    served.leave()
    assert show(wire, start(wire, "order"))["status"] == "queued"


def test_a_runner_with_another_signing_key_is_not_drawn(wire: Wire, served: ServedRunner) -> None:
    wire.server.serve.signing_key = "ours"
    served.register(workflow("order"), keyFingerprint=fingerprint("theirs"))
    run_id = start(wire, "order")
    assert show(wire, run_id)["status"] == "queued"
    wire.run(wire.server.serve.look())
    assert show(wire, run_id)["status"] == "queued"

    served.register(workflow("order"), keyFingerprint=fingerprint("ours"))
    served.next().answer(206, {"opcodes": [ran("a")]})
    post = served.next()
    served.register(workflow("order"), keyFingerprint=fingerprint("theirs"))
    post.answer(206, {"opcodes": [ran("b")]})
    settled(wire, run_id, "running", stepCount=2)
    a_runner(wire, workflow("order")).next().returned()

    settled(wire, run_id, "succeeded")


@pytest.mark.parametrize(
    "body",
    [
        {"app": "shop"},
        {"url": "http://x/y"},
        {"app": "", "url": "http://x/y"},
        {"app": "shop", "url": "ftp://x/y"},
        {"app": "shop", "url": "http://x/y", "instance": 1},
        {"app": "shop", "url": "http://x/y", "instance": "x" * 256},
        [],
    ],
)
def test_a_goodbye_that_makes_no_sense_is_refused(wire: Wire, body: Any) -> None:
    assert wire.call("POST", "/deregister", body).status == 400
