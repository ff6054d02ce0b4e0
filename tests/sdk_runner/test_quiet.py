"""A pass is over when its handler waits for nothing but steps: not before, and then at once."""

import asyncio
import gc
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from perdure.sdk import App, Context, workflow
from tests.sdk_runner.played import PENDING, Played, done, failed, play, play_soon

Handler = Callable[[Context], Awaitable[object]]


def an_app(handler: Handler) -> App:
    return App("shop", [workflow("w")(handler)])


async def outside() -> None:
    """Work that is no step: several turns of the loop, and a real timer."""
    for _ in range(30):
        await asyncio.sleep(0)
    await asyncio.sleep(0.02)


async def two_steps(ctx: Context, name: str) -> str:
    await outside()
    await ctx.step.sleep(f"{name}1", 1)
    await ctx.step.sleep(f"{name}2", 1)
    return name


async def gathered(ctx: Context) -> object:
    return await asyncio.gather(two_steps(ctx, "a"), two_steps(ctx, "b"))


async def grouped(ctx: Context) -> object:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(two_steps(ctx, name)) for name in "ab"]
    return [task.result() for task in tasks]


async def waited(ctx: Context) -> object:
    tasks = [asyncio.ensure_future(two_steps(ctx, name)) for name in "ab"]
    await asyncio.wait(tasks)
    return [task.result() for task in tasks]


async def one_by_one(ctx: Context) -> object:
    tasks = [asyncio.ensure_future(two_steps(ctx, name)) for name in "ab"]
    return [await task for task in tasks]


async def as_they_come(ctx: Context) -> object:
    branches = asyncio.as_completed([two_steps(ctx, name) for name in "ab"])
    return sorted([await branch for branch in branches])


async def shielded(ctx: Context) -> object:
    return await asyncio.gather(*(asyncio.shield(two_steps(ctx, name)) for name in "ab"))


async def timed(ctx: Context) -> object:
    return await asyncio.gather(*(asyncio.wait_for(two_steps(ctx, name), 60) for name in "ab"))


async def deeply(ctx: Context) -> object:
    async def deeper(name: str, depth: int) -> object:
        if not depth:
            return await two_steps(ctx, name)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(deeper(name, depth - 1))
        return await asyncio.gather(asyncio.shield(task))

    def flat(found: object) -> object:
        return flat(found[0]) if isinstance(found, list) else found

    return [flat(found) for found in await asyncio.gather(deeper("a", 4), deeper("b", 6))]


async def queued(ctx: Context) -> object:
    queue: asyncio.Queue[str] = asyncio.Queue()

    async def produce(name: str) -> None:
        queue.put_nowait(await two_steps(ctx, name))

    producers = [asyncio.ensure_future(produce(name)) for name in "ab"]
    found = sorted([await queue.get() for _ in producers])
    await asyncio.gather(*producers)
    return found


SHAPES = [
    gathered,
    grouped,
    waited,
    one_by_one,
    shielded,
    timed,
    deeply,
    queued,
    as_they_come,
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_all_branches_get_as_far_as_they_can_in_every_pass(shape: Handler) -> None:
    app = an_app(shape)
    first = play(app, "w")
    second = play(app, "w", {"a1": done(), "b1": done()})
    third = play(app, "w", {"a1": done(), "b1": done(), "a2": done(), "b2": PENDING})
    last = play(app, "w", {"a1": done(), "b1": done(), "a2": done(), "b2": done()})

    if shape is not as_they_come:  # it may be cut short, see decision 39
        assert sorted(first.names) == ["a1", "b1"]
        assert sorted(second.names) == ["a2", "b2"]
    assert third == Played(206, {"opcodes": [], "logs": []})
    assert last == Played(200, {"data": ["a", "b"], "logs": []})


@pytest.mark.parametrize(
    "shape", [shape for shape in SHAPES if shape is not queued], ids=lambda shape: shape.__name__
)
def test_a_branch_that_fails_brings_the_handler_down(shape: Handler) -> None:
    played = play(an_app(shape), "w", {"a1": failed("a failed"), "b1": failed("b failed")})

    assert played.status == 400
    assert played.body["error"] in ("a failed", "b failed", "a failed; b failed")


@pytest.mark.parametrize("depth", [0, 1, 5, 12])
def test_news_climb_any_tower_of_waits_before_the_pass_is_over(depth: int) -> None:
    """The first of two branches that is done lets the handler go on, however deep it lies."""

    async def handler(ctx: Context) -> object:
        async def deep(name: str, levels: int) -> object:
            if not levels:
                return await ctx.step.wait_for_event(name, "ev", timeout=1)
            return await asyncio.gather(deep(name, levels - 1))

        branches = [asyncio.ensure_future(deep(name, depth)) for name in ("quick", "slow")]
        await asyncio.wait(branches, return_when=asyncio.FIRST_COMPLETED)
        return await ctx.step.run("after", lambda: "went on")

    played = play(an_app(handler), "w", {"quick": done(), "slow": PENDING})

    assert played.names == ["after"]


def test_a_local_timeout_around_a_step_does_not_hold_the_pass() -> None:
    async def handler(ctx: Context) -> None:
        async with asyncio.timeout(3600):
            await asyncio.wait([ctx.step.sleep("nap", "1h")], timeout=3600)

    assert play(an_app(handler), "w").names == ["nap"]


def test_a_step_may_be_begun_before_work_outside_and_awaited_after() -> None:
    async def handler(ctx: Context) -> object:
        nap = ctx.step.sleep("nap", 1)
        child = ctx.step.run_workflow("kid", "child")
        await outside()
        ran = asyncio.ensure_future(ctx.step.run("late", outside))
        await outside()
        return await asyncio.gather(nap, child, ran)

    played = play(an_app(handler), "w")

    assert played.names == ["nap", "kid", "late"]  # in the order of the calls
    assert "data" in played.opcodes["late"]


def test_a_branch_that_turns_to_a_stuck_one_after_work_outside_is_noticed() -> None:
    """Nothing announces this turn, so it is looked for."""

    async def handler(ctx: Context) -> object:
        stuck = asyncio.ensure_future(two_steps(ctx, "a"))

        async def other() -> str:
            await asyncio.sleep(0.1)
            return await stuck

        return await asyncio.gather(other())

    assert play(an_app(handler), "w", {"a1": PENDING}).names == []


def test_opcodes_keep_the_order_of_calls_not_of_endings() -> None:
    async def handler(ctx: Context) -> None:
        async def body(turns: int) -> int:
            for _ in range(turns):
                await asyncio.sleep(0)
            return turns

        await asyncio.gather(*(ctx.step.run(f"s{n}", body, n) for n in (9, 0, 5, 2)))

    played = play(an_app(handler), "w")

    assert played.names == ["s9", "s0", "s5", "s2"]
    assert [played.opcodes[name]["data"] for name in played.names] == [9, 0, 5, 2]


def test_a_background_task_of_a_library_does_not_hold_the_pass() -> None:
    async def handler(ctx: Context) -> None:
        forever = asyncio.ensure_future(asyncio.Event().wait())
        try:
            await ctx.step.sleep("nap", 1)
        finally:
            forever.cancel()

    assert play(an_app(handler), "w").names == ["nap"]


def test_cleaning_up_may_await_and_comes_after_the_answer() -> None:
    cleaned = []

    async def handler(ctx: Context) -> None:
        try:
            await ctx.step.run("s", outside)
        finally:
            await outside()
            cleaned.append(True)
            await ctx.step.sleep("never", 1)

    assert play(an_app(handler), "w").names == ["s"]
    assert cleaned == [True]


def test_a_pass_given_up_ends_its_bodies() -> None:
    ended = []

    async def handler(ctx: Context) -> None:
        async def body() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(True)

        await ctx.step.run("s", body)

    async def main() -> None:
        playing = asyncio.ensure_future(play_soon(an_app(handler), "w"))
        for _ in range(20):
            await asyncio.sleep(0)
        playing.cancel()
        await asyncio.wait([playing])
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)

    asyncio.run(main())
    assert ended == [True]


def test_many_passes_at_once_do_not_disturb_each_other() -> None:
    async def handler(ctx: Context) -> object:
        return await asyncio.gather(
            *(ctx.step.run("s", lambda: ctx.attempt) for _ in range(3)), two_steps(ctx, "a")
        )

    async def main() -> list[Played]:
        app = an_app(handler)
        return await asyncio.gather(*(play_soon(app, "w", attempt=n) for n in range(1, 51)))

    for number, played in enumerate(uvloop.run(main()), start=1):
        assert sorted(played.names) == ["a1", "s", "s:1", "s:2"]
        assert played.opcodes["s:2"]["data"] == number


ROUNDS = 200


def test_a_pass_leaves_nothing_for_the_collector() -> None:
    async def handler(ctx: Context) -> object:
        await ctx.step.run("a", lambda: 1)
        return await ctx.step.run("b", outside)

    async def main() -> int:
        app = an_app(handler)
        for memos in ({}, {"a": done()}, {"a": done(), "b": done()}):
            await play_soon(app, "w", memos)
        gc.collect()
        gc.disable()
        try:
            for _ in range(ROUNDS):
                for memos in ({}, {"a": done()}, {"a": done(), "b": done()}):
                    await play_soon(app, "w", memos)
                    await asyncio.sleep(0)
            return gc.collect()
        finally:
            gc.enable()

    # What others in this process left may be among it; one cycle in every pass would be more.
    assert uvloop.run(main()) < ROUNDS
