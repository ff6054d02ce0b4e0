"""Random weeks of an office: runs ask and judge, people decide, time passes, servers restart."""

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.support.http import Json, Wire, a_wire
from tests.support.runner import (
    HandRunner,
    Invoke,
    a_runner,
    broke,
    op,
    ran,
    rows,
    show,
    start,
    steps,
    workflow,
)

WEEKS = 2
DAYS = 60
SESSIONS = ("s1", "s2", None)
STATUSES = ("pending", "escalated", "approved", "denied", "cancelled")
OPEN = ("pending", "escalated")


class Office:
    """One server, one runner whose code is a die, and people."""

    def __init__(self, wire: Wire, die: Random) -> None:
        self.wire = wire
        self.die = die
        self.runner: HandRunner = a_runner(wire, workflow("order"))
        self.started: list[tuple[str, str | None]] = []
        self.decided: dict[str, Json] = {}
        self.passes: Counter[str] = Counter()

    def live(self) -> None:
        """One day."""
        deed = self.die.choice(
            [self.order, self.decide, self.decide, self.wait, self.judge, self.stop, self.restart]
        )
        deed()
        self.work()

    def order(self) -> None:
        session = self.die.choice(SESSIONS)
        members: dict[str, Any] = {} if session is None else {"session": session}
        self.started.append((start(self.wire, "order", **members), session))

    def decide(self) -> None:
        asked = rows(self.wire, "/approvals")
        still = [row for row in asked if row["status"] in OPEN]
        asked = still if still and self.die.random() < 0.7 else asked
        if not asked:
            return
        approval = self.die.choice(asked)
        body = {"status": self.die.choice(("approved", "denied")), "decidedBy": "ann"}
        told = self.wire.call("POST", f"/approvals/{approval['id']}/decision", body)
        known = self.decided.get(approval["id"])
        if approval["status"] in OPEN:
            self.decided[approval["id"]] = told.ok()
        elif known is not None and known["status"] == body["status"]:
            assert told.ok() == known
        else:
            told.refused(409, "approval_not_pending")

    def wait(self) -> None:
        self.wire.advance(seconds=self.die.choice((1, 40, 100)))

    def judge(self) -> None:
        if self.started:
            run_id, _ = self.die.choice(self.started)
            body = {"name": self.die.choice("ab"), "value": self.die.random()}
            self.wire.call("POST", f"/runs/{run_id}/scores", body).ok()

    def stop(self) -> None:
        if self.started:
            run_id, _ = self.die.choice(self.started)
            what = self.die.choice(("cancel", "pause", "resume", "resume"))
            assert self.wire.call("POST", f"/runs/{run_id}/{what}").status in (200, 409)

    def restart(self) -> None:
        if self.die.random() < 0.3:
            self.runner.vanish()
            self.wire.restart()
            self.runner = a_runner(self.wire, workflow("order"))

    # The code of the runs -------------------------------------------------------------------------

    def work(self) -> None:
        """Answer until nobody asks any more."""
        quiet = 0
        while quiet < 2:
            self.wire.until_decided()
            if self.wire.server.invoker.count:
                self._answer(self.runner.next())
                quiet = 0
            else:
                quiet += 1

    def _answer(self, invoke: Invoke) -> None:
        self.passes[invoke.run_id] += 1
        number, die = self.passes[invoke.run_id], self.die
        if number > 12 or die.random() < 0.1:
            invoke.returned()
        elif die.random() < 0.1:
            invoke.found(self._asks(number), broke(f"bad {number}", retriable=False))
        else:
            found = [self._asks(number)] + [self._asks(number, "b")] * (die.random() < 0.3)
            found += [op("Sleep", f"nap {number}", sleepMs=50_000)] * (die.random() < 0.2)
            found += [ran(f"work {number}")] * (die.random() < 0.3)
            told = {"name": "c", "value": number}
            found += [op("Score", f"score:{number}", data=told)] * (die.random() < 0.3)
            invoke.found(*found)
        calls = [session._calls for session in self.wire.server.connect.sessions]
        self.wire.until(lambda: not any(invoke.id in each for each in calls))

    def _asks(self, number: int, suffix: str = "") -> Json:
        members: Json = {}
        if self.die.random() < 0.5:
            members["timeoutMs"] = 60_000
        if self.die.random() < 0.5:
            members["escalatesTo"] = "boss"
        return op("Approval", f"ask {number}{suffix}", tool="t", data=number, **members)

    # What must be so ------------------------------------------------------------------------------

    def check(self) -> None:
        listed = {s: rows(self.wire, f"/approvals?status={s}&limit=200") for s in STATUSES}
        every = rows(self.wire, "/approvals?limit=200")
        assert Counter(a["id"] for part in listed.values() for a in part) == Counter(
            a["id"] for a in every
        )
        assert len(every) < 200, "more than this test looks at"
        runs = {run_id: show(self.wire, run_id) for run_id, _ in self.started}
        known = {run_id: {s["name"]: s for s in steps(self.wire, run_id)} for run_id in runs}
        for approval in every:
            self._check_approval(approval, runs, known[approval["runId"]][approval["step"]])
        for approval_id, told in self.decided.items():
            assert self.wire.call("GET", f"/approvals/{approval_id}").ok() == told
        for run_id, run in runs.items():
            scores = rows(self.wire, f"/runs/{run_id}/scores")
            assert run.get("scoreCount", 0) == len(scores)
            waiting = {n for n, s in known[run_id].items() if s["status"] == "waiting"}
            asks = bool(waiting) and all(name.startswith("ask") for name in waiting)
            if run["status"] in ("waiting", "needs_attention"):
                assert run["status"] == ("needs_attention" if asks else "waiting"), run
        self._check_sessions(runs)

    def _check_approval(self, approval: Json, runs: dict[str, Json], step: Json) -> None:
        is_over = runs[approval["runId"]]["status"] in ("succeeded", "failed", "cancelled")
        status = approval["status"]
        assert step["approvalId"] == approval["id"]
        if status in OPEN:
            assert (is_over, step["status"]) == (False, "waiting"), approval
        elif status == "cancelled":
            assert (is_over, step["status"]) == (True, "cancelled"), approval
        else:
            told = {"status": status, "decidedBy": approval["decidedBy"], "args": approval["args"]}
            assert (step["status"], step["output"]) == ("succeeded", told), approval

    def _check_sessions(self, runs: dict[str, Json]) -> None:
        found = {row["session"]: row for row in rows(self.wire, "/sessions")}
        expected: dict[str, Counter[str]] = {}
        for run_id, session in self.started:
            if session is not None:
                expected.setdefault(session, Counter())[runs[run_id]["status"]] += 1
        assert {name: Counter(row["statusCounts"]) for name, row in found.items()} == expected
        assert all(row["runCount"] == sum(row["statusCounts"].values()) for row in found.values())


@pytest.mark.parametrize("seed", range(WEEKS))
def test_nothing_is_forgotten_decided_twice_or_counted_wrong(tmp_path: Path, seed: int) -> None:
    with a_wire(tmp_path) as wire:
        office = Office(wire, Random(seed))
        for day in range(DAYS):
            office.live()
            if day % 20 == 19:
                office.check()
        assert office.decided, "people were idle"
