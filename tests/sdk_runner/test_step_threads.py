"""Plain functions of steps run in threads, at most so many at once."""

import asyncio
import contextvars
import logging
import threading

import pytest

from perdure.sdk import App, Context, NonRetriableError
from perdure.sdk.passes import begin
from perdure.sdk.step_threads import StepThreads
from perdure.sdk.testing import Rehearsal
from perdure.sdk.wire import Reply, encode, read_invoke
from perdure.sdk.workflows import workflow
from tests.sdk_runner.played import LIMIT_SECONDS, body_of, play, play_soon

customer: contextvars.ContextVar[str] = contextvars.ContextVar("customer", default="nobody")


class Gate:
    """Functions that block until they are let through, and how many have begun."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.begun = threading.Semaphore(0)
        self.count = 0

    def block(self) -> str:
        self.count += 1
        self.begun.release()
        assert self.opened.wait(LIMIT_SECONDS)
        return "done"

    async def until_begun(self, number: int) -> None:
        for _ in range(number):
            assert await asyncio.to_thread(self.begun.acquire, timeout=LIMIT_SECONDS)


def an_app(handler: object, threads: int | None = None) -> App:
    app = App("shop", threads=threads)
    app.workflow("w")(handler)  # type: ignore[arg-type]
    return app


def test_a_plain_function_does_not_block_the_loop() -> None:
    freed = threading.Event()

    async def handler(ctx: Context) -> None:
        async def free() -> str:
            freed.set()
            return "freed"

        await asyncio.gather(
            ctx.step.run("waits", freed.wait, LIMIT_SECONDS), ctx.step.run("frees", free)
        )

    played = play(an_app(handler), "w")
    assert [opcode["data"] for opcode in played.body["opcodes"]] == [True, "freed"]


def test_context_variables_and_log_lines_are_carried_into_the_thread() -> None:
    async def handler(ctx: Context) -> None:
        def body() -> list[object]:
            ctx.log("inside")
            return [customer.get(), threading.current_thread() is threading.main_thread()]

        customer.set("ann")
        await ctx.step.run("s", body)

    played = play(an_app(handler), "w")
    assert played.opcodes["s"]["data"] == ["ann", False]
    assert played.lines == [("s", 0, "inside")]


def test_what_a_plain_function_raises_fails_its_step() -> None:
    async def handler(ctx: Context) -> None:
        def final() -> None:
            raise NonRetriableError("no such card")

        await asyncio.gather(
            ctx.step.run("empty", lambda: next(iter(()))),
            ctx.step.run("final", final),
            ctx.step.run("cancelled", _raise, asyncio.CancelledError()),
        )

    opcodes = play(an_app(handler), "w").opcodes
    assert opcodes["empty"]["error"]["message"] == "StopIteration"
    assert "sdk/step_threads.py" not in opcodes["empty"]["error"]["stack"]
    assert opcodes["final"]["retriable"] is False
    assert opcodes["cancelled"]["error"]["message"] == "the step was cancelled"


def _raise(error: BaseException) -> None:
    raise error


def test_a_step_inside_a_plain_function_is_refused() -> None:
    async def handler(ctx: Context) -> None:
        await ctx.step.run("outer", lambda: ctx.step.run("inner", lambda: 1))

    error = play(an_app(handler), "w").opcodes["outer"]["error"]
    assert error["message"] == "step 'inner' was called inside step 'outer'"


def test_an_awaitable_that_a_plain_function_returns_is_awaited() -> None:
    async def ask(text: str) -> str:
        return text.upper()

    async def handler(ctx: Context) -> None:
        await ctx.step.run("s", lambda: ask("rain"))

    assert play(an_app(handler), "w").opcodes["s"]["data"] == "RAIN"


def test_further_calls_wait_and_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()

    async def handler(ctx: Context) -> None:
        await asyncio.gather(*(ctx.step.run("s", gate.block) for _ in range(5)))

    async def story() -> None:
        playing = asyncio.ensure_future(play_soon(an_app(handler, threads=2), "w"))
        await gate.until_begun(2)
        await asyncio.sleep(0)
        assert gate.count == 2
        gate.opened.set()
        played = await playing
        assert [opcode["data"] for opcode in played.body["opcodes"]] == ["done"] * 5

    with caplog.at_level(logging.WARNING, "perdure.sdk"):
        asyncio.run(story())
    assert caplog.messages == [
        "all 2 threads for plain step functions are busy; 3 calls wait for one"
    ]


def test_the_time_of_a_step_begins_with_its_function() -> None:
    gate = Gate()
    ran: list[str] = []

    async def handler(ctx: Context) -> None:
        asyncio.get_running_loop().call_later(0.02, gate.opened.set)
        await asyncio.gather(
            ctx.step.run("first", gate.block),
            ctx.step.run("second", ran.append, "second", timeout="1ms"),
        )

    play(an_app(handler, threads=1), "w")
    assert ran == ["second"], "the wait for a thread does not count"


def test_a_plain_function_that_takes_too_long_fails_its_step() -> None:
    gate = Gate()

    async def handler(ctx: Context) -> None:
        await ctx.step.run("s", gate.block, timeout="1ms")

    error = play(an_app(handler), "w").opcodes["s"]["error"]
    assert error["message"] == "the step took longer than its 0.001 s"
    gate.opened.set()


def test_a_late_result_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()

    async def handler(ctx: Context) -> None:
        await ctx.step.run("s", gate.block)

    async def story() -> None:
        app = an_app(handler, threads=1)
        replies: list[Reply] = []
        playing = begin(app, read_invoke(encode(body_of("w"))), replies.append)
        assert playing is not None
        await gate.until_begun(1)
        playing.abandon()
        gate.opened.set()
        # The one thread takes the next call only after it has reported the late end.
        await app.threads.call("next", lambda: None).ended
        assert replies == []

    with caplog.at_level(logging.WARNING, "perdure.sdk"):
        asyncio.run(story())
    assert "the function of step 's' ended after its step was given up" in caplog.text


def test_a_call_that_waits_does_not_begin_when_its_pass_is_abandoned() -> None:
    gate = Gate()
    ran: list[str] = []

    async def handler(ctx: Context) -> None:
        await ctx.step.run("s", ran.append, "s")

    async def story() -> None:
        app = an_app(handler, threads=1)
        busy = app.threads.call("busy", gate.block)
        await gate.until_begun(1)
        replies: list[Reply] = []
        playing = begin(app, read_invoke(encode(body_of("w"))), replies.append)
        assert playing is not None
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        playing.abandon()
        gate.opened.set()
        await busy.ended
        await app.threads.call("next", lambda: None).ended
        assert (ran, replies) == ([], [])

    asyncio.run(story())


def test_a_thread_of_a_closed_loop_takes_further_calls() -> None:
    gate = Gate()
    threads = StepThreads(1)

    async def leave() -> None:
        threads.call("s", gate.block)
        await gate.until_begun(1)

    async def come() -> object:
        call = threads.call("t", lambda: "t")
        await call.ended
        return call.take()

    asyncio.run(leave())
    gate.opened.set()
    assert asyncio.run(come()) == "t"


def test_the_number_of_threads_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()

    async def story(app: App, number: int) -> None:
        calls = [app.threads.call("s", gate.block) for _ in range(number + 1)]
        await gate.until_begun(number)
        assert [call.begun.done() for call in calls] == [True] * number + [False]
        gate.opened.set()
        await asyncio.gather(*(call.ended for call in calls))
        gate.opened.clear()
        await gate.until_begun(1)

    monkeypatch.setenv("DURABLEX_STEP_THREADS", "3")
    asyncio.run(story(App("shop"), 3))
    asyncio.run(story(App("shop", threads=2), 2))
    monkeypatch.setenv("DURABLEX_STEP_THREADS", "none")
    asyncio.run(story(App("shop"), 32))
    with pytest.raises(ValueError, match="at least 1 thread"):
        App("shop", threads=0)


def test_a_rehearsal_calls_plain_functions_one_after_the_other() -> None:
    order: list[str] = []

    @workflow("w")
    async def handler(ctx: Context) -> list[bool]:
        def body(name: str) -> bool:
            order.append(name)
            return threading.current_thread() is threading.main_thread()

        return await asyncio.gather(*(ctx.step.run(name, body, name) for name in "abcdefgh"))

    async def story() -> None:
        run = await Rehearsal(App("shop", [handler])).start("w")
        assert run.output() == [False] * 8
        assert order == list("abcdefgh")

    asyncio.run(story())
