"""Runners as programs: they serve until they are told to stop."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable

import httpx

from tests.sdk_runner.engine import fake_engine
from tests.sdk_runner.played import body_of
from tests.sdk_runner.test_serve import a_registry

LIMIT_SECONDS = 60

PROGRAM = """
import asyncio, sys
from perdure.sdk import App, run_connected, run_server

app = App("shop")

@app.workflow("slow")
async def slow(ctx):
    return await ctx.step.run("s", body)

async def body():
    print("busy", flush=True)
    await asyncio.to_thread(sys.stdin.readline)  # until the test has its say
    return "finished"

if sys.argv[1] == "connect":
    run_connected(app, engine_url=sys.argv[2])
else:
    run_server(app, engine_url=sys.argv[2], port=0)
print("left", flush=True)
"""


async def program(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def heard(process: asyncio.subprocess.Process, line: bytes) -> None:
    assert process.stdout is not None
    assert (await process.stdout.readline()).strip() == line


def go_on(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.write(b"\n")


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(LIMIT_SECONDS):
            await story()

    asyncio.run(main())


def test_a_connected_program_finishes_what_runs_and_leaves() -> None:
    async def story() -> None:
        async with fake_engine() as engine:
            process = await program("connect", engine.url)
            runner = await engine.accept()
            await runner.greet()
            waiting = runner.begin(body_of("slow"))
            await heard(process, b"busy")
            process.terminate()
            go_on(process)
            status, body = await waiting
            assert (status, body["opcodes"][0]["data"]) == (206, "finished")
            await heard(process, b"left")
            assert await process.wait() == 0

    run(story)


def test_a_connected_program_that_finds_nobody_leaves_when_told() -> None:
    async def story() -> None:
        process = await program("connect", "http://127.0.0.1:1")
        assert process.stderr is not None
        assert b"connecting to the engine at" in await process.stderr.readline()
        process.terminate()
        await heard(process, b"left")
        assert await process.wait() == 0

    run(story)


def test_an_incompatible_engine_ends_the_program_with_an_error() -> None:
    async def story() -> None:
        async with fake_engine() as engine:
            process = await program("connect", engine.url)
            runner = await engine.accept()
            await runner.send({"type": "hello", "payload": {"protocolVersion": 2}})
            assert process.stderr is not None
            assert b"Incompatible: the engine speaks versions 2 to 2" in await process.stderr.read()
            assert await process.wait() == 1

    run(story)


def test_a_served_program_finishes_what_runs_and_leaves() -> None:
    async def story() -> None:
        async with a_registry() as registry, httpx.AsyncClient() as client:
            process = await program("serve", registry.url)
            url = (await registry.told.get())["url"]
            waiting = asyncio.ensure_future(client.post(url, content=json.dumps(body_of("slow"))))
            await heard(process, b"busy")
            process.terminate()
            go_on(process)
            answer = await waiting
            assert answer.json()["opcodes"][0]["data"] == "finished"
            await heard(process, b"left")
            assert await process.wait() == 0

    run(story)
