"""The client of the engine's HTTP API, against a server that answers by a script."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from perdure.sdk import ApiError, Client, RunFailedError

LIMIT_SECONDS = 30


@dataclass
class Script:
    """What the server answers, one after the other, and what it was asked."""

    answers: list[bytes]
    url: str = ""
    asked: list[str] = field(default_factory=list)
    bodies: list[object] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    connections: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.heads.append(head)
                self.asked.append(head.split(" HTTP/1.1")[0])
                if "content-length: " in head:
                    length = int(head.split("content-length: ")[1].split("\r\n")[0])
                    told = await reader.readexactly(length)
                    self.bodies.append(json.loads(told) if told else None)
                answer = self.answers.pop(0)
                writer.write(answer)
                if b"connection: close" in answer or not answer:
                    break
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def answer(status: int, body: object, *headers: str) -> bytes:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = [f"HTTP/1.1 {status} X", f"content-length: {len(text)}", *headers, "", ""]
    return "\r\n".join(head).encode() + text


@contextlib.asynccontextmanager
async def scripted(*answers: bytes) -> AsyncIterator[Script]:
    script = Script(list(answers))
    server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
    script.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield script
    finally:
        server.close()


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(LIMIT_SECONDS):
            await story()
            while others := asyncio.all_tasks() - {asyncio.current_task()}:
                await asyncio.wait(others)

    asyncio.run(main())


def test_requests_are_spelled_as_the_contract_spells_them() -> None:
    async def story() -> None:
        row = {"id": "a/b", "status": "cancelled", "unknown": 1}
        async with (
            scripted(
                answer(202, {"runId": "01", "woke": 2, "triggered": []}),
                answer(202, {"workflow": "w", "runId": "02", "skipped": True}),
                answer(200, row),
                answer(200, row),
                answer(200, [{"name": "s", "output": [1], "error": {"message": "m"}}]),
                answer(200, [{"name": "w"}]),
            ) as script,
            Client(engine_url=f"{script.url}/base/", api_key="k", app="shop") as client,
        ):
            sent = await client.send(
                "e", None, runner="n", dedupe_id="d", session="s", tags={"a": "b"}
            )
            triggered = await client.trigger("w/1", {"n": 1}, app="other app")
            assert (await client.cancel("a/b")).is_finished
            assert (await client.run("a/b")).status == "cancelled"
            [step] = await client.steps("01")
            assert await client.workflows() == [{"name": "w"}]

            assert (sent.run_id, sent.woke) == ("01", 2)
            assert (triggered.run_id, triggered.skipped) == ("02", True)
            assert step.error is not None
            assert (step.output, step.error.message) == ([1], "m")
            assert script.asked == [
                "POST /base/events",
                "POST /base/workflows/other%20app/w%2F1/trigger",
                "POST /base/runs/a%2Fb/cancel",
                "GET /base/runs/a%2Fb",
                "GET /base/runs/01/steps",
                "GET /base/workflows",
            ]
            assert script.bodies == [
                {
                    "name": "e",
                    "app": "shop",
                    "runner": "n",
                    "dedupeId": "d",
                    "session": "s",
                    "tags": {"a": "b"},
                    "data": None,
                },
                {"input": {"n": 1}},
                None,
            ]
            assert all("authorization: Bearer k\r\n" in head for head in script.heads)
            assert script.connections == 1, "connections are kept"

    run(story)


def test_people_decide_judge_and_fork_through_the_client() -> None:
    async def story() -> None:
        approval = {"id": "a/1", "runId": "01", "status": "pending", "step": "ok"}
        score = {"id": "s", "runId": "01", "name": "n"}
        async with (
            scripted(
                answer(200, []),
                answer(200, [approval]),
                answer(200, approval | {"status": "approved", "decidedBy": "ann"}),
                answer(200, score),
                answer(200, [score]),
                answer(200, {"id": "02", "status": "queued", "fork": {"step": "s", "model": "m"}}),
                answer(200, [{"session": "talk", "runCount": 2}]),
            ) as script,
            Client(engine_url=script.url, app="a b") as client,
        ):
            asked = await client.until_asked("01", "ok")
            told = await client.decide(asked.id, approve=True, by="ann", args=None)
            await client.score("01", "n", True, comment="c", dedupe_id="d")
            [row] = await client.scores("01")
            forked = await client.fork("01", "s", model="m", params={"t": 1})
            [talk] = await client.sessions()

            assert (asked.is_open, told.is_open, told.decided_by) == (True, False, "ann")
            assert row.name == "n"
            assert forked.fork is not None
            assert forked.fork.model == "m"
            assert script.asked == [
                "GET /approvals?runId=01",
                "GET /approvals?runId=01",
                "POST /approvals/a%2F1/decision",
                "POST /runs/01/scores",
                "GET /runs/01/scores",
                "POST /runs/01/fork",
                "GET /sessions?app=a%20b",
            ]
            assert talk.run_count == 2
            yes_or_no = {"value": 1, "dataType": "boolean"}
            assert script.bodies == [
                {"status": "approved", "decidedBy": "ann", "args": None},
                {"name": "n", **yes_or_no, "comment": "c", "dedupeId": "d"},
                {"step": "s", "model": "m", "params": {"t": 1}},
            ]

    run(story)


def test_refusals_are_errors_with_their_status_and_word() -> None:
    async def story() -> None:
        async with (
            scripted(
                answer(404, {"error": "no such run"}),
                answer(500, b"<html>"),
                answer(302, b"", "location: /elsewhere"),
                answer(200, b"no JSON"),
                answer(200, {"status": "running"}),
            ) as script,
            Client(engine_url=script.url) as client,
        ):
            for status, text in [
                (404, "no such run"),
                (500, "<html>"),
                (302, "^302: $"),
                (200, "cannot be read"),
                (200, "cannot be read"),
            ]:
                with pytest.raises(ApiError, match=text) as refused:
                    await client.run("01")
                assert refused.value.status == status

    run(story)


def test_bodies_may_come_in_any_form() -> None:
    async def story() -> None:
        row = json.dumps({"id": "01", "status": "running"}).encode()
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (row[:5], row[5:]))
        async with (
            scripted(
                b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n",
                b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + row,
                answer(200, row, "connection: close"),
                answer(200, row),
            ) as script,
            Client(engine_url=script.url) as client,
        ):
            for _ in range(4):
                assert (await client.run("01")).id == "01"
            assert script.connections == 3

    run(story)


def test_no_answer_is_an_error_without_a_status() -> None:
    async def story() -> None:
        async with (
            scripted(
                b"",
                b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\nconnection: close\r\n\r\n{",
                b"?!\r\n",
            ) as script,
            Client(engine_url=script.url) as client,
        ):
            for _ in range(3):
                with pytest.raises(ApiError, match="no answer") as refused:
                    await client.run("01")
                assert refused.value.status == 0
        async with Client(engine_url="http://127.0.0.1:1") as client:
            with pytest.raises(ApiError, match="no answer"):
                await client.run("01")

    run(story)


def test_an_answer_that_does_not_come_is_not_waited_for() -> None:
    async def story() -> None:
        async with (
            scripted(b"HTTP/1.1 200 OK\r\n") as script,
            Client(engine_url=script.url, timeout_seconds=0.05) as client,
        ):
            with pytest.raises(ApiError, match="no answer"):
                await client.run("01")

    run(story)


def test_a_result_is_waited_for_until_there_is_one() -> None:
    async def story() -> None:
        def row(status: str, **more: object) -> bytes:
            return answer(200, {"id": "01", "status": status, **more})

        async with (
            scripted(
                row("queued"),
                row("needs_attention"),
                row("succeeded", result={"n": 1}),
                row("failed", error={"message": "boom"}),
                row("cancelled"),
                *[row("waiting")] * 20,
            ) as script,
            Client(engine_url=script.url) as client,
        ):
            assert await client.result("01") == {"n": 1}
            with pytest.raises(RunFailedError, match="run 01 failed: boom"):
                await client.result("01")
            with pytest.raises(RunFailedError, match="run 01 cancelled"):
                await client.result("01")
            with pytest.raises(TimeoutError):
                await client.result("01", timeout_seconds=0.05)

    run(story)


def test_a_workflow_and_a_step_can_be_waited_for() -> None:
    async def story() -> None:
        mine, other = {"name": "w", "app": "shop"}, {"name": "w", "app": "other"}
        async with (
            scripted(
                answer(200, []),
                answer(200, [other]),
                answer(200, [other, mine]),
                answer(200, [{"name": "a"}]),
                answer(200, [{"name": "a"}, {"name": "b", "status": "waiting"}]),
                *[answer(200, [])] * 20,
            ) as script,
            Client(engine_url=script.url, app="shop") as client,
        ):
            await client.until_known("w")
            assert (await client.until_step("01", "b")).status == "waiting"
            assert len(script.asked) == 5
            with pytest.raises(TimeoutError):
                await client.until_known("w", timeout_seconds=0.05)

    run(story)


@pytest.mark.parametrize("url", ["localhost:6770", "ftp://here", "http://", "/x"])
def test_what_is_no_url_of_an_engine_is_refused_at_once(url: str) -> None:
    with pytest.raises(ValueError, match="not the URL of an engine"):
        Client(engine_url=url)
