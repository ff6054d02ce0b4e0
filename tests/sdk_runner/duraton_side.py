"""A runner with the published SDK, run by the interpreter that has it: python -m … ENGINE_URL."""

import asyncio
import sys
from datetime import UTC, datetime
from typing import Any

import duraton  # type: ignore[import-not-found]  # lives in an environment of its own
from duraton.context import ApprovalRequest, ScoreInput  # type: ignore[import-not-found]


async def sequence(ctx: Any) -> Any:
    first = await ctx.step.run("first", lambda: {"n": 1, "é": [None, True, 1.5]})
    await ctx.step.sleep("nap", "1.5s")
    second = await ctx.step.run("second", lambda: None)
    return [first, second]


async def parallel(ctx: Any) -> Any:
    async def slow() -> str:
        await asyncio.sleep(0.001)
        return "slow"

    return await asyncio.gather(
        ctx.step.run("s", slow), ctx.step.run("s", lambda: "quick"), ctx.step.sleep("s", 5)
    )


async def everything(ctx: Any) -> Any:
    return await asyncio.gather(
        ctx.step.sleep_until("until", datetime(2030, 1, 1, tzinfo=UTC)),
        ctx.step.wait_for_event("wait", event="paid", timeout="1h"),
        ctx.step.wait_for_event("wait if", event="paid", timeout=5, if_="event.data.x == 1"),
        ctx.step.run_workflow("child", name="kid", data={"a": 1}, app="other", runner="n1"),
        ctx.step.run_workflow("child", name="kid"),
        ctx.step.emit("emit", name="ev", data=None, app="other", dedupe_id="d"),
        ctx.step.emit("emit", name="ev"),
        ctx.webhook.send("hook", url="https://example.com", data=[1]),
        ctx.step.skip("skip", "why"),
        ctx.step.skip("skip"),
        ctx.step.approval(
            "approve",
            ApprovalRequest(tool="refund", args={"n": 1}, risk="high", summary="s", timeout="2h"),
        ),
        ctx.score(ScoreInput(name="acc", value=1, data_type="boolean", comment="c")),
    )


async def failing(ctx: Any) -> Any:
    def give_up() -> None:
        raise duraton.NonRetriableError("no")

    def later() -> None:
        raise duraton.RetryAfterError("later", "30s")

    def oops() -> None:
        raise ValueError("oops")

    await asyncio.gather(
        ctx.step.run("give up", give_up), ctx.step.run("later", later), ctx.step.run("oops", oops)
    )


async def logging(ctx: Any) -> Any:
    def body() -> int:
        ctx.log.warn("inside", {"k": 1})
        return 1

    ctx.log("top")
    ctx.log.debug("top again")
    return await ctx.step.run("s", body)


async def catching(ctx: Any) -> Any:
    try:
        return await ctx.step.run_workflow("child", name="kid")
    except Exception as error:
        return f"caught {error}"


async def polling(ctx: Any) -> Any:
    return await ctx.step.poll("p", lambda: None, every="300ms", timeout="900ms")


async def raising(ctx: Any) -> Any:
    ctx.log("before")
    raise RuntimeError("boom")


async def mourning(ctx: Any) -> Any:
    return [ctx.error.message, ctx.run_id, ctx.attempt, ctx.app, ctx.runner, ctx.event.data]


HANDLERS = [sequence, parallel, everything, failing, logging, catching, polling, raising]


async def main(url: str) -> None:
    workflows = [duraton.define_workflow(each.__name__, each) for each in HANDLERS]
    workflows.append(duraton.define_workflow("mourning", raising, on_failure=mourning))
    await duraton.Runner(workflows, url=url, app="shop", runner="theirs").run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
