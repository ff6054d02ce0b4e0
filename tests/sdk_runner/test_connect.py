"""The Connect transport against a fake engine that holds every message against the contract."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop

from perdure.sdk import App, Connection, Context, Incompatible, Retry, workflow
from perdure.sdk.limits import MESSAGE_BYTES_MAX
from tests.sdk_runner.engine import FakeEngine, RunnerSocket, fake_engine
from tests.sdk_runner.played import body_of, done

LIMIT_SECONDS = 30


def an_app(**handlers: Callable[[Context], Awaitable[object]]) -> App:
    return App("shop", [workflow(name)(handler) for name, handler in handlers.items()])


async def echo(ctx: Context) -> object:
    return await ctx.step.run("echo", lambda: ctx.event.data)


def a_connection(app: App, engine: FakeEngine, **options: Any) -> Connection:
    return Connection(app, engine_url=engine.url, redial_seconds=0.001, **options)


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(LIMIT_SECONDS):
            await story()

    uvloop.run(main())


def test_a_runner_registers_in_answer_to_hello_and_is_invoked() -> None:
    async def story() -> None:
        app = App("shop")
        app.workflow("echo", on=["go", "come"], retry=Retry(3))(echo)
        async with (
            fake_engine() as engine,
            a_connection(app, engine, runner="node-7", api_key="k", region="eu"),
        ):
            runner = await engine.accept()
            told = await runner.greet()
            first = await runner.invoke(body_of("echo", data={"n": 1}))
            last = await runner.invoke(body_of("echo", {"echo": done(5)}))

            assert engine.requests[0].path == "/connect"
            assert engine.requests[0].headers["authorization"] == "Bearer k"
            offered = engine.requests[0].headers["sec-websocket-protocol"]
            assert offered == "durablex.connect.v0, duraton.connect.v0"
            assert (told["app"], told["runner"], told["region"]) == ("shop", "node-7", "eu")
            assert told["sdkName"] == "perdure"
            assert told["framework"] == "connect"
            assert told["workflows"] == [
                {
                    "name": "echo",
                    "triggers": [{"event": "go"}, {"event": "come"}],
                    "retry": {"maxAttempts": 3},
                }
            ]
            assert first[0] == 206
            assert first[1]["opcodes"][0]["data"] == {"n": 1}
            assert last == (200, {"data": 5, "logs": []})

    run(story)


@pytest.mark.parametrize(
    "known",
    [("durablex.connect.v0",), ("duraton.connect.v0",), ()],
    ids=["first", "second", "none"],
)
def test_either_name_of_the_protocol_will_do(known: tuple[str, ...]) -> None:
    async def story() -> None:
        async with (
            fake_engine(subprotocols=known) as engine,
            a_connection(an_app(echo=echo), engine),
        ):
            runner = await engine.accept()
            await runner.greet()
            assert runner.socket.subprotocol == (known[0] if known else None)

    run(story)


def test_passes_run_at_once_on_one_socket() -> None:
    async def story() -> None:
        gate = asyncio.Event()

        async def slow(ctx: Context) -> object:
            return await ctx.step.run("wait", gate.wait)

        async with fake_engine() as engine, a_connection(an_app(slow=slow, echo=echo), engine):
            runner = await engine.accept()
            await runner.greet()
            waiting = [runner.begin(body_of("slow")) for _ in range(50)]
            assert (await runner.invoke(body_of("echo", data=1)))[0] == 206
            assert not any(future.done() for future in waiting)
            gate.set()
            for status, body in await asyncio.gather(*waiting):
                assert (status, body["opcodes"][0]["data"]) == (206, True)

    run(story)


def test_what_is_no_invoke_is_answered_and_what_is_nothing_is_left_alone() -> None:
    async def story() -> None:
        async with fake_engine() as engine, a_connection(an_app(echo=echo), engine):
            runner = await engine.accept()
            await runner.send({"type": "hello"})  # without a payload: no answer
            await runner.send({"type": "news", "payload": {}})
            await runner.send("no JSON")
            await runner.send('{"type": 5}')
            await runner.greet()
            misfits: list[dict[str, object]] = [
                {},
                {"event": [], "steps": {}, "ctx": {}},
                {"event": {}, "steps": None, "ctx": {}},
                {"event": {}, "steps": {}, "ctx": "x"},
            ]
            for body in misfits:
                status, told = await runner.invoke(body)
                assert status == 400
                assert told["error"].startswith("not an invoke")
            assert (await runner.invoke(body_of("nope")))[0] == 400
            assert (await runner.invoke(body_of("echo")))[0] == 206

    run(story)


def test_a_lost_engine_is_dialled_again_and_told_everything_again() -> None:
    async def story() -> None:
        async with fake_engine() as engine, a_connection(an_app(echo=echo), engine):
            for _ in range(3):
                runner = await engine.accept()
                await runner.greet()
                assert (await runner.invoke(body_of("echo")))[0] == 206
                runner.socket.transport.abort()

    run(story)


def test_an_engine_that_comes_later_is_found() -> None:
    async def story() -> None:
        async with (
            fake_engine(refuse_with=401) as engine,
            a_connection(an_app(echo=echo), engine),
        ):
            for _ in range(3):
                await engine.refused.get()
            engine.refuse_with = None
            await (await engine.accept()).greet()

    run(story)


def test_passes_of_a_lost_socket_are_given_up() -> None:
    async def story() -> None:
        begun, ended = asyncio.Event(), asyncio.Event()

        async def slow(ctx: Context) -> None:
            async def body() -> None:
                begun.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    ended.set()

            await ctx.step.run("wait", body)

        async with fake_engine() as engine, a_connection(an_app(slow=slow), engine):
            runner = await engine.accept()
            await runner.greet()
            waiting = runner.begin(body_of("slow"))
            await begun.wait()
            runner.socket.transport.abort()
            await ended.wait()
            with pytest.raises(ConnectionError):
                await waiting

    run(story)


def test_an_engine_of_another_version_ends_it() -> None:
    async def story() -> None:
        async with fake_engine() as engine:
            connection = a_connection(an_app(echo=echo), engine)
            running = asyncio.ensure_future(connection.run())
            runner = await engine.accept()
            hello = {"protocolVersion": 2, "minProtocolVersion": 2, "maxProtocolVersion": 3}
            await runner.send({"type": "hello", "payload": hello})
            with pytest.raises(Incompatible, match="versions 2 to 3"):
                await running
            await runner.socket.wait_closed()
            assert runner.socket.close_code == 1002

    run(story)


def test_pings_keep_the_engines_pace() -> None:
    async def story() -> None:
        async with (
            fake_engine() as engine,
            a_connection(an_app(echo=echo), engine, ping_seconds=3600),
        ):
            runner = await engine.accept()
            await runner.greet(heartbeatMs=5)
            for _ in range(3):
                await runner.pinged.get()

    run(story)


def test_a_silent_engine_is_given_up() -> None:
    async def story() -> None:
        async with (
            fake_engine() as engine,
            a_connection(an_app(echo=echo), engine, ping_seconds=0.005, pong_seconds=0.02),
        ):
            runner = await engine.accept()
            runner.answers_pings = False
            await runner.greet()
            again = await engine.accept()  # dialled anew
            assert again is not runner
            assert not runner.pinged.empty()

    run(story)


def test_messages_over_the_limit_are_not_sent_and_not_taken() -> None:
    async def story() -> None:
        async def huge(ctx: Context) -> str:
            return "x" * (MESSAGE_BYTES_MAX - 50)  # fits a reply, but not its envelope

        async def large(ctx: Context) -> str:
            return "x" * (MESSAGE_BYTES_MAX - 200)

        async with fake_engine() as engine, a_connection(an_app(huge=huge, large=large), engine):
            runner = await engine.accept()
            await runner.greet()
            status, told = await runner.invoke(body_of("huge"))
            assert (status, str(MESSAGE_BYTES_MAX) in told["error"]) == (500, True)
            assert (await runner.invoke(body_of("large")))[0] == 200
            runner.begin(body_of("large", data="x" * MESSAGE_BYTES_MAX)).cancel()
            await runner.socket.wait_closed()
            assert runner.socket.close_code == 1009
            await (await engine.accept()).greet()

    run(story)


def test_a_message_may_come_in_pieces() -> None:
    async def story() -> None:
        async with fake_engine() as engine, a_connection(an_app(echo=echo), engine):
            runner = await engine.accept()
            await runner.socket.send(iter(['{"type":"hello",', '"payload":', '{"x":"é"}}']))
            assert (await runner.hear())["type"] == "runner.register"

    run(story)


def test_the_engine_hears_of_what_is_worked_on() -> None:
    async def story() -> None:
        gate = asyncio.Event()

        async def slow(ctx: Context) -> object:
            return await ctx.step.run("wait", gate.wait, timeout="1d")

        async with fake_engine() as engine:
            connection = a_connection(an_app(slow=slow, echo=echo), engine, ping_seconds=0.001)
            running = asyncio.ensure_future(connection.run())
            runner = await engine.accept()
            await runner.greet()
            waiting = runner.begin(body_of("slow", passTimeoutMs=1_000))
            told = await runner.hear()
            assert told == {"type": "invoke.heartbeat", "payload": {"ids": ["inv_1"]}}
            gate.set()
            assert (await waiting)[1]["opcodes"][0]["op"] == "StepRun", "no need to ask for time"
            await connection.close()
            await running

    run(story)


def test_closing_lets_what_runs_finish_and_takes_nothing_new() -> None:
    async def story() -> None:
        gate = asyncio.Event()

        async def slow(ctx: Context) -> object:
            return await ctx.step.run("wait", gate.wait)

        async with fake_engine() as engine:
            connection = a_connection(an_app(slow=slow, echo=echo), engine)
            running = asyncio.ensure_future(connection.run())
            runner = await engine.accept()
            await runner.greet()
            waiting = runner.begin(body_of("slow"))
            assert (await runner.invoke(body_of("echo")))[0] == 206
            closing = asyncio.ensure_future(connection.close(grace_seconds=LIMIT_SECONDS))
            await asyncio.sleep(0)
            assert await runner.hear() == {"type": "runner.leave"}, "others are chosen from now on"
            assert await runner.invoke(body_of("echo")) == (
                503,
                {"error": "this runner is going away"},
            )
            gate.set()
            assert (await waiting)[0] == 206
            await closing
            await running
            await runner.socket.wait_closed()
            assert runner.socket.close_code == 1000

    run(story)


def test_an_invoke_sent_before_the_engine_heard_the_goodbye_is_refused() -> None:
    async def story() -> None:
        async with fake_engine() as engine, a_connection(an_app(echo=echo), engine) as connection:
            runner = await engine.accept()
            runner.answers_pings = False
            await runner.greet()
            closing = asyncio.ensure_future(connection.close(grace_seconds=LIMIT_SECONDS))
            assert await runner.hear() == {"type": "runner.leave"}
            await runner.pinged.get()
            assert (await runner.invoke(body_of("echo")))[0] == 503, "charged to no run"
            await runner.send({"type": "pong"})
            await closing
            await runner.socket.wait_closed()
            assert runner.socket.close_code == 1000

    run(story)


def test_closing_waits_no_longer_than_its_grace() -> None:
    async def story() -> None:
        begun = asyncio.Event()

        async def slow(ctx: Context) -> None:
            async def body() -> None:
                begun.set()
                await asyncio.Event().wait()

            await ctx.step.run("wait", body)

        async with fake_engine() as engine, a_connection(an_app(slow=slow), engine) as connection:
            runner: RunnerSocket = await engine.accept()
            await runner.greet()
            waiting = runner.begin(body_of("slow"))
            await begun.wait()
            await connection.close(grace_seconds=0)
            with pytest.raises(ConnectionError):
                await waiting

    run(story)


def test_closing_without_an_engine_is_quick() -> None:
    async def story() -> None:
        connection = Connection(an_app(echo=echo), engine_url="http://127.0.0.1:1")
        async with connection:
            await asyncio.sleep(0)

    run(story)
