"""Workflows written with the published `duraton` SDK, run against a server and judged here.

Runs in an environment that has the SDK and nothing of ours, and says one line of JSON per case.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
from duraton import NonRetriableError, RetryConfig, define_workflow  # type: ignore[import-not-found]
from duraton.client.client import AsyncDuratonClient  # type: ignore[import-not-found]
from duraton.client.errors import DuratonAPIError  # type: ignore[import-not-found]
from duraton.client.options import (  # type: ignore[import-not-found]
    ApprovalDecisionInput,
    ForkInput,
    ListApprovalsOptions,
    ListControlActionsOptions,
    ListRunsOptions,
    ListSessionsOptions,
    ScoreRequest,
    WaitRunOptions,
)
from duraton.connect import Runner  # type: ignore[import-not-found]
from duraton.context import ApprovalRequest, ScoreInput  # type: ignore[import-not-found]
from duraton.errors import RetryAfterError  # type: ignore[import-not-found]

from tests.push import duraton_ai
from tests.support import absent  # noqa: F401 (what it does, it does when imported)

PATIENCE_SECONDS = 90.0
tries: dict[str, int] = {}


def counted(key: str) -> int:
    tries[key] = tries.get(key, 0) + 1
    return tries[key]


async def greet(ctx: Any) -> Any:
    ctx.log("begins")
    one = await ctx.step.run("one", lambda: {"n": ctx.event.data["n"]})
    two = await ctx.step.run("two", lambda: one["n"] + 1)
    return {"sum": one["n"] + two}


async def flaky(ctx: Any) -> Any:
    def body() -> int:
        number = counted(ctx.run_id)
        if number < 3:
            raise ValueError(f"try {number}")
        return number

    return await ctx.step.run("flaky", body)


async def later(ctx: Any) -> Any:
    def body() -> int:
        if counted(ctx.run_id) == 1:
            raise RetryAfterError("not yet", 50)
        return 2

    return await ctx.step.run("later", body)


async def fatal(ctx: Any) -> Any:
    def body() -> None:
        raise NonRetriableError("never")

    return await ctx.step.run("fatal", body)


async def mourn(ctx: Any) -> Any:
    await ctx.step.emit("tell", name="mourned", data={"why": ctx.error.message})
    return ctx.error.message


async def naps(ctx: Any) -> Any:
    await ctx.step.sleep("nap", 50)
    await ctx.step.sleep_until("until", 1_000)
    return "rested"


async def waits(ctx: Any) -> Any:
    found = await ctx.step.wait_for_event(
        "paid", event="paid", timeout="30s", if_=f'event.data.run == "{ctx.run_id}"'
    )
    nothing = await ctx.step.wait_for_event("never", event="never", timeout=50)
    return [found, nothing]


async def parent(ctx: Any) -> Any:
    kid = await ctx.step.run_workflow("kid", name="greet", data={"n": 5})
    try:
        await ctx.step.run_workflow("bad kid", name="fatal")
    except Exception as error:
        return [kid, str(error)]
    return None


async def branches(ctx: Any) -> Any:
    async def slow(name: str) -> Any:
        await ctx.step.sleep(f"nap {name}", 50)
        return await ctx.step.run(f"after {name}", lambda: name)

    def unsure() -> str:
        if counted(ctx.run_id) == 1:
            raise ValueError("once")
        return "sure"

    return await asyncio.gather(
        ctx.step.run("a", lambda: 1),
        slow("x"),
        slow("y"),
        ctx.step.run("unsure", unsure),
        ctx.step.run("b", lambda: 2),
    )


async def many(ctx: Any) -> Any:
    total = 0
    for number in range(60):
        total += await ctx.step.run("again", lambda number=number: number)
    return total


async def boom(ctx: Any) -> Any:
    raise RuntimeError("boom")


async def skips(ctx: Any) -> Any:
    await ctx.step.skip("gift", "nobody wants one")
    return "done"


async def gated(ctx: Any) -> Any:
    one, two = await asyncio.gather(
        ctx.step.approval(
            "one", ApprovalRequest(tool="pay", args={"n": 5}, risk="high", summary="s")
        ),
        ctx.step.approval("two", ApprovalRequest(tool="mail", timeout="1h", escalates_to="boss")),
    )
    late = await ctx.step.approval("late", ApprovalRequest(tool="wait", args=1, timeout=50))
    return [[each.status, each.args, each.decided_by] for each in (one, two, late)]


async def judged(ctx: Any) -> Any:
    await ctx.step.run("work", lambda: 1)
    await ctx.score(ScoreInput(name="quality", value=0.5, comment="so so"))
    await ctx.score(ScoreInput(name="tone", string_value="kind", source="llm-judge"))
    other = ctx.event.data and ctx.event.data.get("other")
    if other:
        await ctx.score(ScoreInput(name="deferred", value=1, data_type="boolean", run_id=other))
    used = await ctx.asserts.used_step("work")
    return [used, await ctx.step.run("last", lambda: "done")]


SOON = RetryConfig(max_attempts=3, backoff="fixed", initial_delay_ms=20)
WORKFLOWS = [
    define_workflow("greet", greet),
    define_workflow("flaky", flaky, retry=SOON),
    define_workflow("later", later, retry=SOON),
    define_workflow("fatal", fatal, retry=SOON, on_failure=mourn),
    define_workflow("naps", naps),
    define_workflow("waits", waits),
    define_workflow("parent", parent),
    define_workflow("branches", branches, retry=SOON),
    define_workflow("many", many),
    define_workflow("boom", boom),
    define_workflow("skips", skips),
    define_workflow("gated", gated),
    define_workflow("judged", judged),
    *duraton_ai.WORKFLOWS,
]


class Driver:
    """A caller of the engine."""

    def __init__(self, client: AsyncDuratonClient, http: httpx.AsyncClient) -> None:
        self.client = client
        self.http = http

    async def emit(self, name: str, data: Any = None, **members: Any) -> dict[str, Any]:
        answer = await self.http.post("/events", json={"name": name, "data": data, **members})
        assert answer.status_code == 202, answer.text
        told: dict[str, Any] = answer.json()
        return told

    async def start(self, name: str, data: Any = None) -> str:
        return str((await self.emit(name, data))["runId"])

    async def ends(self, run_id: str, status: str = "succeeded") -> Any:
        run = await self.client.runs.wait(run_id)
        assert run.status == status, run
        return run

    async def result(self, name: str, data: Any = None) -> Any:
        return (await self.ends(await self.start(name, data))).result


async def case_steps(driver: Driver) -> None:
    run_id = await driver.start("greet", {"n": 1})
    run = await driver.ends(run_id)
    assert run.result == {"sum": 3}, run
    assert [(s.name, s.output) for s in await driver.client.runs.steps(run_id)] == [
        ("one", {"n": 1}),
        ("two", 2),
    ]
    assert [line.message for line in await driver.client.runs.logs(run_id)] == ["begins"]


async def case_retries(driver: Driver) -> None:
    run = await driver.ends(await driver.start("flaky"))
    assert (run.result, run.attempt, run.error_count) == (3, 3, 2), run
    assert await driver.result("later") == 2


async def case_failures(driver: Driver) -> None:
    run = await driver.ends(await driver.start("fatal"), "failed")
    assert run.error.message == "never", run
    page = await driver.client.runs.list()
    assert run.id in [one.id for one in page.runs]
    boom_run = await driver.ends(await driver.start("boom"), "failed")
    assert boom_run.error.message == "boom", boom_run


async def case_time(driver: Driver) -> None:
    assert await driver.result("naps") == "rested"


async def case_events(driver: Driver) -> None:
    run_id = await driver.start("waits")
    await driver.client.runs.wait(run_id, _until("waiting"))
    assert (await driver.emit("paid", {"run": "another"}))["woke"] == 0
    assert (await driver.emit("paid", {"run": run_id}))["woke"] == 1
    run = await driver.ends(run_id)
    assert run.result == [{"run": run_id}, None], run


async def case_children(driver: Driver) -> None:
    assert await driver.result("parent") == [{"sum": 11}, "never"]


async def case_branches(driver: Driver) -> None:
    assert await driver.result("branches") == [1, "x", "y", "sure", 2]


async def case_many_steps(driver: Driver) -> None:
    assert await driver.result("many") == sum(range(60))


async def case_skipping(driver: Driver) -> None:
    run_id = await driver.start("skips")
    await driver.ends(run_id)
    assert [step.status for step in await driver.client.runs.steps(run_id)] == ["skipped"]


async def case_approvals(driver: Driver) -> None:
    approvals = driver.client.approvals
    run_id = await driver.start("gated")
    await driver.client.runs.wait(run_id, _until("needs_attention"))
    asked = {one.step: one for one in await approvals.list(ListApprovalsOptions(run_id=run_id))}
    one, two = asked["one"], asked["two"]
    assert (one.tool, one.args, one.risk, one.summary) == ("pay", {"n": 5}, "high", "s"), one
    assert two.escalates_to == "boss", two
    assert two.expires_at, two
    pending = await approvals.list(ListApprovalsOptions(status="pending"))
    assert {each.id for each in pending} == {one.id, two.id}, pending
    yes = ApprovalDecisionInput(status="approved", decided_by="ann", args={"n": 3})
    told = await approvals.decide(one.id, yes)
    assert (told.status, told.edited_args) == ("approved", {"n": 3}), told
    assert await approvals.decide(one.id, yes) == told
    assert await approvals.get(one.id) == told
    no = ApprovalDecisionInput(status="denied", decided_by="bob")
    await _refused(409, approvals.decide(one.id, no))
    await _refused(404, approvals.get("nobody"))
    await approvals.decide(two.id, no)
    run = await driver.ends(run_id)
    assert run.result == [
        ["approved", {"n": 3}, "ann"],
        ["denied", None, "bob"],
        ["denied", 1, "system:timeout"],
    ], run
    actions = await driver.client.runs.control_actions(ListControlActionsOptions(run_id=run_id))
    assert [each.action for each in actions] == ["deny", "deny", "approve"], actions


async def case_scores(driver: Driver) -> None:
    runs = driver.client.runs
    run_id = await driver.start("judged")
    assert (await driver.ends(run_id)).result == [True, "done"]
    judge = await driver.ends(await driver.start("judged", {"other": run_id}))
    human = await runs.score(run_id, ScoreRequest(name="liked", value=0.25, step="work"))
    assert (human.source, human.data_type, human.step) == ("human", "numeric", "work"), human
    found = {one.name: one for one in await runs.scores(run_id)}
    assert set(found) == {"quality", "tone", "used:work", "deferred", "liked"}, found
    assert (found["tone"].string_value, found["tone"].source) == ("kind", "llm-judge")
    assert (found["deferred"].value, found["deferred"].scorer) == (1, "judged")
    assert found["liked"] == human
    assert (await runs.get(run_id)).score_count == 5
    liked = await runs.list(ListRunsOptions(score_name="liked", min_score=0.2, max_score=0.3))
    assert [run.id for run in liked.runs] == [run_id], liked
    quality = await runs.list(ListRunsOptions(score_name="quality", min_score=0.5))
    assert {run.id for run in quality.runs} == {run_id, judge.id}, quality
    await _refused(400, runs.score(run_id, ScoreRequest(name=" ", value=1)))
    await _refused(404, runs.scores("nobody"))


async def case_sessions(driver: Driver) -> None:
    for number in range(2):
        sent = await driver.emit("judged", session="talk", dedupeId=f"talk-{number}")
        await driver.ends(sent["runId"])
    waiting = (await driver.emit("gated", session="talk"))["runId"]
    await driver.client.runs.wait(waiting, _until("needs_attention"))
    (talk,) = await driver.client.sessions.list(ListSessionsOptions(app="stories"))
    assert (talk.session, talk.run_count) == ("talk", 3), talk
    assert talk.status_counts == {"succeeded": 2, "needs_attention": 1}, talk
    page = await driver.client.runs.list(ListRunsOptions(session="talk"))
    assert [len(page.runs), page.runs[0].started_at] == [3, talk.last_started_at], page
    assert page.runs[-1].started_at == talk.first_started_at, page
    since = ListSessionsOptions(since=talk.last_started_at, limit=5)
    assert await driver.client.sessions.list(since) == [talk]
    await driver.client.runs.cancel(waiting)


async def case_forks(driver: Driver) -> None:
    runs = driver.client.runs
    run_id = await driver.start("judged")
    await driver.ends(run_id)
    spec = ForkInput(step="last", model="m", prompt="p", params={"t": 0.5})
    forked = await driver.ends((await runs.fork(run_id, spec)).id)
    assert forked.replay_of == run_id, forked
    assert (forked.fork.step, forked.fork.model, forked.fork.prompt) == ("last", "m", "p"), forked
    assert forked.fork.params == {"t": 0.5}, forked
    assert forked.result == [True, "done"], forked
    assert await runs.scores(forked.id) == []
    await _refused(400, runs.fork(run_id, ForkInput(step="never")))
    assert [text async for text in runs.explain(run_id)] == ["because"]


async def _refused(status: int, asked: Awaitable[Any]) -> None:
    told: Any = None
    try:
        told = await asked
    except DuratonAPIError as error:
        told = error
    assert getattr(told, "status", None) == status, told


async def case_control(driver: Driver) -> None:
    run_id = await driver.start("waits")
    await driver.client.runs.wait(run_id, _until("waiting"))
    paused = await driver.client.runs.pause(run_id)
    assert (paused.status, paused.paused_by.reason) == ("paused", "manual"), paused
    await driver.client.runs.resume(run_id)
    cancelled = await driver.client.runs.cancel(run_id)
    assert cancelled.status == "cancelled", cancelled
    done = await driver.start("greet", {"n": 2})
    await driver.ends(done)
    again = await driver.client.runs.replay(done, {"n": 3})
    assert (await driver.ends(again.id)).result == {"sum": 7}
    from_two = await driver.client.runs.retry_from_step(done, "two")
    assert (await driver.ends(from_two.id)).replay_of == done
    actions = await driver.client.runs.control_actions()
    assert {"pause", "resume", "cancel", "replay"} <= {one.action for one in actions}


async def case_catalogue(driver: Driver) -> None:
    workflows = await driver.client.workflows.list()
    assert {one.name for one in workflows} >= {"greet", "many"}, workflows
    assert [app.name for app in await driver.client.apps.list()] == ["stories"]
    runners = await driver.client.runners.list()
    assert [one.live for one in runners if one.runner_id == "r1"] == [True], runners


async def case_crowd(driver: Driver) -> None:
    runs = await asyncio.gather(*(driver.start("greet", {"n": n}) for n in range(40)))
    ended = await asyncio.gather(*(driver.ends(run_id) for run_id in runs))
    assert [run.result["sum"] for run in ended] == [2 * n + 1 for n in range(40)]


CASES: dict[str, Callable[[Driver], Awaitable[None]]] = {
    name.removeprefix("case_"): case
    for name, case in list(globals().items())
    if name.startswith("case_")
} | duraton_ai.CASES


def _until(*statuses: str) -> Any:
    return WaitRunOptions(until=statuses, interval_s=0.02, timeout_s=PATIENCE_SECONDS)


def a_runner(url: str, runner: str) -> Any:
    return Runner(
        WORKFLOWS,
        url=url,
        app="stories",
        runner=runner,
        resolve_provider=lambda name: duraton_ai.Provider(),
        resolve_cost=duraton_ai.cost_of,
    )


async def main(url: str) -> None:
    async with (
        a_runner(url, "r1"),
        a_runner(url, "r2"),
        AsyncDuratonClient(url=url) as client,
        httpx.AsyncClient(base_url=url, timeout=PATIENCE_SECONDS) as http,
    ):
        driver = Driver(client, http)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while sum(one.live for one in await client.runners.list()) < 2:
                pass
        for name, case in CASES.items():
            told = {"case": name, "ok": True, "story": ""}
            try:
                await asyncio.wait_for(case(driver), PATIENCE_SECONDS)
            except Exception as error:
                told |= {"ok": False, "story": f"{type(error).__name__}: {error}"}
            print(json.dumps(told), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
