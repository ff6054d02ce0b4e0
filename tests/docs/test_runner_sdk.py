"""The page about the runner SDK is true: its examples run, its tables are complete."""

import asyncio
import inspect
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import perdure.sdk
from perdure.sdk import Context, run_connected, run_server
from perdure.sdk.context import Context as ContextClass
from perdure.sdk.passes import execute
from perdure.sdk.settings import resolve
from perdure.sdk.steps import Step
from perdure.sdk.wire import read_invoke
from perdure.sdk.workflows import App, workflow

PAGE = (Path(__file__).parents[2] / "docs" / "runner-sdk.md").read_text()


@pytest.fixture
def page() -> dict[str, Any]:
    """The names that the examples of the page define, run one after the other."""
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE):
        exec(block, names)
    return names


def test_the_example_passes_its_own_test(page: dict[str, Any]) -> None:
    asyncio.run(page["test_an_order_is_fulfilled"]())


def test_the_example_for_people_waits_and_goes_on(page: dict[str, Any]) -> None:
    async def story() -> None:
        rehearsal = page["Rehearsal"](page["app"])
        paid, refused = await rehearsal.start("refund"), await rehearsal.start("refund")
        await rehearsal.decide(paid, "payout", approve=True, args={"amount": 3})
        await rehearsal.advance("2h")
        assert paid.output() == "ch_-3"
        assert refused.output() == "refused by system:timeout"

    asyncio.run(story())


def test_the_example_of_who_decides_asks_and_decides(page: dict[str, Any]) -> None:
    asked = {"id": "01A", "runId": "01R", "status": "pending"}

    _, heard = play(page["decide_all"], [asked], asked | {"status": "approved"})

    assert heard[:2] == [
        "GET /approvals?status=pending HTTP/1.1",
        "POST /approvals/01A/decision HTTP/1.1",
    ]
    told = {"status": "approved", "decidedBy": "ann", "args": {"amount": 3}}
    assert json.loads(heard[2]) == told


def test_the_parallel_example_asks_for_both_steps_at_once(page: dict[str, Any]) -> None:
    body = {"event": {}, "steps": {}, "ctx": {"workflow": "both"}}
    app = App("shop", [workflow("both")(page["both"])])

    reply = asyncio.run(execute(app, read_invoke(json.dumps(body).encode())))

    assert [opcode["data"] for opcode in json.loads(reply.body)["opcodes"]] == ["ch_1", "ch_2"]


def play(example: Callable[[str], Awaitable[Any]], *answers: object) -> tuple[Any, list[str]]:
    """What an example returns, and what it asked a server that answers by a script."""
    heard: list[str] = []
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = re.search(r"content-length: (\d+)", head)
            heard.append(head.splitlines()[0])
            if length:
                heard.append((await reader.readexactly(int(length[1]))).decode())
            body = json.dumps(answer).encode()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        writer.close()
        await writer.wait_closed()
        ended.set()

    async def story() -> Any:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            returned = await example(f"http://127.0.0.1:{port}")
            await ended.wait()
        return returned

    return asyncio.run(story()), heard


def test_the_client_example_sends_and_waits(page: dict[str, Any]) -> None:
    returned, heard = play(
        page["order"],
        {"runId": "01R", "woke": 0, "triggered": [{"workflow": "fulfil", "runId": "01R"}]},
        {"id": "01R", "status": "running"},
        {"id": "01R", "status": "succeeded", "result": {"charge": "ch_5"}},
    )

    assert returned == {"charge": "ch_5"}
    assert heard[0] == "POST /events HTTP/1.1"
    assert json.loads(heard[1]) == {
        "name": "order.created",
        "app": "shop",
        "dedupeId": "A1",
        "data": {"id": "A1", "total": 5},
    }
    assert heard[2:] == ["GET /runs/01R HTTP/1.1"] * 2


def test_the_table_of_calls_is_complete_and_true() -> None:
    documented = set(re.findall(r"`ctx\.step\.(\w+)\(", PAGE))
    offered = {name for name, _ in inspect.getmembers(Step, inspect.isfunction) if name[0] != "_"}

    assert documented == offered
    for call in re.findall(r"`ctx\.(\w+)", PAGE):
        assert call in ContextClass.__slots__


def test_the_variables_are_those_that_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = re.findall(r"^\| `(DURABLEX_\w+)` \| (?:`(\w+)`)? *\|.*\| (.+) \|$", PAGE, re.MULTILINE)
    assert len(rows) == 6
    for name, other, default in rows:
        field = {"DURABLEX_ENGINE_URL": "engine_url"}.get(name, name[9:].lower())
        if default != "–":
            assert getattr(resolve(), field) == default.strip("`")
        for variable in filter(None, (name, other)):
            with monkeypatch.context() as patch:
                patch.setenv(variable, "http://told")
                assert getattr(resolve(), field) == "http://told"


def test_the_calls_of_runners_fit() -> None:
    namespace = {**vars(perdure.sdk), "app": App("shop")}
    for call in re.findall(r"^    (run_\w+\(.*\))$", PAGE, re.MULTILINE):
        name, _, arguments = call.partition("(")
        function = {"run_connected": run_connected, "run_server": run_server}[name]
        bound = eval(f"dict({arguments.removeprefix('app, ')}", namespace)
        inspect.signature(function).bind(namespace["app"], **bound)
    assert Context is ContextClass
