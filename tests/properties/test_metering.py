"""Whatever arrives whenever, and whatever it uses: budgets and token throttles hold."""

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from perdure.core.intake.definition import read_manifest
from perdure.core.push.command import Progressed, ReportStep, Returned
from perdure.core.push.step import push_of
from perdure.core.push.usage import Usage
from perdure.core.run.state import TASK_KINDS, Dialect, Run
from perdure.dispatch.connected_runners import Call, Runner
from perdure.engine.claims import ShowRun
from perdure.engine.events import Incoming, Ingested, IngestEvent
from perdure.engine.registration import RegisterRunner
from perdure.engine.run_control import ResumeRun
from perdure.protocols.durablex.views import run_view
from perdure.store.interface import QueueKey
from tests.engine.engine_harness import Stage, a_stage
from tests.support.clock import SECOND

WINDOW = 60
"""Seconds. What was used leaves the window at most 1/512 of it late."""
LIMIT = 100
SLACK = WINDOW / 512 + 0.001


class Troupe:
    """A runner that answers when it is told to, and sees what it is asked."""

    is_writable = True

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.open: list[Call] = []
        self.begun: dict[str, int] = {}
        """When runs had their first pass, in the order in which they had it."""
        self.used: list[tuple[int, str, int]] = []
        """When, by whom and how much was told."""
        self.scopes: dict[str, str] = {}
        self.arrived: list[tuple[str, str]] = []
        self.waived: set[str] = set()
        self.faults: list[str] = []
        self.steps = 0
        self.limits_passes = False

    async def register(self, **policies: Any) -> None:
        body = {"app": "shop", "workflows": [{"name": "write", **policies}]}
        self.limits_passes = "budget" in policies
        manifest = read_manifest(body, with_url=False)
        operation = RegisterRunner("default", manifest, runner_id="r", link_id="l", url="conn://l")
        await self.stage.play(operation)
        server = self.stage.server
        server.invoker._timeout = 10**6 * SECOND  # its passes may take as long as they like
        server.runners.add(
            Runner(
                QueueKey("default", "shop", TASK_KINDS[Dialect.PUSH]),
                owner="runner:l",
                runner_id="r",
                workflows=frozenset({"write"}),
                link=self,
                send=server.invoker.send,
            )
        )

    def carry(self, call: Call, run: Run) -> None:
        now = self.stage.clock.now()
        told = json.loads(run.arguments)["event"]["data"]["k"]
        self.scopes[call.run_id] = told
        scope = None if self.limits_passes else told
        is_first = call.run_id not in self.begun
        self.begun.setdefault(call.run_id, now)
        asked = (self.limits_passes and call.run_id not in self.waived) or (
            not self.limits_passes and is_first
        )
        if asked and self.used_lately(now, scope) >= LIMIT:
            self.faults.append(f"{call.run_id} began with {self.used_lately(now, scope)} used")
        self.open.append(call)

    def used_lately(self, now: int, scope: str | None) -> int:
        since = now - WINDOW * SECOND
        runs = {run_id for run_id, of in self.scopes.items() if scope in (None, of)}
        return sum(n for at, run_id, n in self.used if at > since and run_id in runs)

    async def arrive(self, scope: str) -> None:
        data = f'{{"k":"{scope}"}}'.encode()
        told: Ingested = await self.stage.play(
            IngestEvent(Incoming(namespace="default", name="write", data=data))
        )
        (one,) = told.triggered
        assert one.gate is None
        assert one.run_id is not None
        self.arrived.append((one.run_id, scope))
        await self.quiet()

    async def answer(self, tokens: int | None) -> None:
        """Let the oldest pass end: with a step that used something, or with the run."""
        if not self.open:
            return
        call = self.open.pop(0)
        if tokens is None:
            self.stage.server.invoker.finish(call, Returned(result=b"null", logs=[]))
        else:
            self.steps += 1
            name = f"s{self.steps}"
            metered = Usage(model="m", tokens=tokens)
            step = ReportStep(step_id=name, name=name, result=b"1", metered=metered)
            self.used.append((self.stage.clock.now(), call.run_id, tokens))
            self.stage.server.invoker.finish(call, Progressed(commands=[step], logs=[]))
        await self.quiet()

    async def shown(self) -> dict[str, dict[str, Any]]:
        views = {}
        for run_id, _ in self.arrived:
            run = await self.stage.store.read_run(run_id)
            assert run is not None
            views[run_id] = run_view(run)
        return views

    async def resume_one(self) -> None:
        for run_id, view in (await self.shown()).items():
            if view["status"] == "paused":
                self.waived.add(run_id)
                await self.stage.play(ResumeRun("default", run_id, "me"))
                await self.quiet()
                return

    async def happen(self, happenings: list[tuple[str, int]]) -> None:
        for what, number in happenings:
            if what == "arrive":
                await self.arrive("ab"[number % 2])
            elif what == "use":
                await self.answer(number)
            elif what == "end":
                await self.answer(None)
            elif what == "resume":
                await self.resume_one()
            else:
                await self.pass_time(number / 2)

    async def quiet(self) -> None:
        """Wait until what was begun is decided: the beat takes one after the other."""
        await self.stage.play(ShowRun("default", "nobody", lambda run: None))

    async def pass_time(self, seconds: float) -> None:
        """Let time pass, during which leases of passes are renewed as they always are."""
        while seconds > 0:
            await self.stage.clock.advance(seconds=min(seconds, 15))
            await self.quiet()
            self.stage.server.invoker.look()
            await self.quiet()
            seconds -= 15

    async def settle(self) -> None:
        """Let everything end: every pass that comes ends its run, and time passes."""
        for _ in range(3 * len(self.arrived) + 3):
            while self.open:
                await self.answer(None)
            if len(self.begun) == len(self.arrived) and not self.open:
                views = (await self.shown()).values()
                if all(view["status"] == "succeeded" for view in views):
                    return
            await self.pass_time(WINDOW + SLACK)
        raise AssertionError(f"some never end: {await self.shown()}")


HAPPENINGS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.integers(0, 1)),
        st.tuples(st.just("use"), st.integers(0, 2 * LIMIT)),
        st.tuples(st.just("end"), st.just(0)),
        st.tuples(st.just("pass"), st.integers(1, 2 * WINDOW)),
        st.tuples(st.just("resume"), st.just(0)),
    ),
    min_size=5,
    max_size=40,
)
FEW = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def play(happenings: list[tuple[str, int]], check: Any, **policies: Any) -> None:
    async def whole() -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with a_stage(Path(folder) / "p.db", deadlines=True) as stage:
                troupe = Troupe(stage)
                await troupe.register(**policies)
                await troupe.happen(happenings)
                await check(troupe)
                await troupe.settle()
                assert troupe.faults == []
                await troupe.pass_time(WINDOW + SLACK)
                rows = stage.store.rows("select count(*) from record where kind = 'meter_turn'")
                assert list(rows) == [(0,)]

    asyncio.run(whole())


@FEW
@given(HAPPENINGS)
def test_no_pass_begins_while_a_budget_is_used_up_and_nobody_is_forgotten(
    happenings: list[tuple[str, int]],
) -> None:
    async def check(troupe: Troupe) -> None:
        now = troupe.stage.clock.now()
        used = troupe.used_lately(now, None)
        views = await troupe.shown()
        under_way = {call.run_id for call in troupe.open}
        for run_id, view in views.items():
            if view["status"] == "paused":
                # Whoever stands still is told why, and only while that is so.
                assert view["pausedBy"]["reason"] == "budget"
                assert f"of {LIMIT} tokens" in view["pausedBy"]["detail"]
                assert troupe.used_lately(now - round(SLACK * SECOND), None) + used >= LIMIT
            elif view["status"] != "succeeded":
                assert run_id in under_way

    play(happenings, check, budget={"windowMs": WINDOW * 1000, "maxTokens": LIMIT, "warnAtPct": 80})


@FEW
@given(HAPPENINGS)
def test_no_run_starts_while_a_token_throttle_is_used_up_and_starts_keep_their_order(
    happenings: list[tuple[str, int]],
) -> None:
    async def check(troupe: Troupe) -> None:
        views = await troupe.shown()
        for scope in "ab":
            came = [run_id for run_id, of in troupe.arrived if of == scope]
            began = [run_id for run_id in troupe.begun if run_id in came]
            assert began == came[: len(began)]
            assert {views[run_id]["status"] for run_id in came[len(began) :]} <= {"queued"}
            if len(began) < len(came):
                # Whoever waits does so because something was used, or is expected to be.
                assert began

    play(happenings, check, tokenThrottle={"tokens": LIMIT, "perMs": WINDOW * 1000, "key": "k"})


@FEW
@given(HAPPENINGS)
@example(
    [
        ("arrive", 0),
        ("arrive", 0),
        ("use", 99),
        ("arrive", 0),
        ("pass", 1),
        ("pass", 120),
        ("use", 100),
    ]
)
def test_limits_of_all_kinds_hold_together(happenings: list[tuple[str, int]]) -> None:
    async def check(troupe: Troupe) -> None:
        assert len(troupe.open) <= 2
        for run_id, view in (await troupe.shown()).items():
            assert view["status"] in ("queued", "running", "paused", "succeeded"), run_id
            assert push_of_is_sane(await troupe.stage.load(run_id))

    play(
        happenings,
        check,
        budget={"windowMs": WINDOW * 1000, "maxTokens": LIMIT},
        tokenThrottle={"tokens": LIMIT, "perMs": WINDOW * 1000},
        concurrency={"limit": 2},
    )


def push_of_is_sane(run: Run) -> bool:
    """Who stands still, or has ended, has no slot."""
    push = push_of(run)
    return not (push.has_slot and (push.pause is not None or run.is_closed))
