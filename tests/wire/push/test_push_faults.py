"""Runners and sockets that go away at every pass of a run, before and after their answer.

Whatever is lost, a step's result is recorded once, no sleep is begun again, no event wakes twice.
"""

import json
from collections import Counter
from typing import Any, Protocol

import pytest

from tests.faults.full_push_workflow import STEPS, OrderCode
from tests.support.http import Json, Wire
from tests.support.runner import HandRunner, a_runner, emit, rows, show, start, steps, workflow
from tests.wire.push.test_push_serve import Posted, ServedRunner

WORKFLOWS = (workflow("order"), workflow("kid", triggers=[]))
PASSES = 8
"""How many passes a run takes to which nothing happens."""
TURNS_MAX = 200


class Peer(Protocol):
    """A runner that can have an accident."""

    @property
    def has_pass(self) -> bool:
        """Whether a pass is here, as far as it is known."""
        ...

    def serve(self, code: OrderCode, fault: str | None) -> None:
        """Take the next pass; a fault says how that goes wrong."""
        ...

    def close(self) -> None: ...


class Connected:
    """Over a socket, dialled again when it broke."""

    faults = ("lost before its answer", "lost after its answer", "answered twice")
    has_pass = True

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._runner: HandRunner = a_runner(wire, *WORKFLOWS, runner="r1")

    def serve(self, code: OrderCode, fault: str | None) -> None:
        invoke = self._runner.next()
        status, body = code.play(invoke.body)
        if fault != "lost before its answer":
            invoke.answer(status, body)
        if fault == "answered twice":
            invoke.answer(status, body)
        elif fault is not None:
            self._runner.vanish()
            self._runner = a_runner(self._wire, *WORKFLOWS, runner="r1")
        # Nothing else tells whether the next pass under way is still this one.
        calls = self._wire.server.invoker._calls
        self._wire.until(lambda: invoke.id not in calls)

    def close(self) -> None:
        self._runner.close()


class Served:
    """Over HTTP."""

    faults = ("lost before its answer", "lost within its answer", "lost after its answer")

    def __init__(self, wire: Wire) -> None:
        self._runner = ServedRunner(wire)
        self._runner.register(*WORKFLOWS, runner="r1")

    @property
    def has_pass(self) -> bool:
        return not self._runner._posts.empty()

    def serve(self, code: OrderCode, fault: str | None) -> None:
        posted: Posted = self._runner.next()
        status, body = code.play(posted.body)
        if fault == "lost within its answer":
            content = json.dumps(body).encode()
            head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(content)}\r\n\r\n"
            posted._writer.write(head.encode() + content[:-1])
        elif fault != "lost before its answer":
            posted.answer(status, body)
        if fault is not None:
            posted.hang_up()

    def close(self) -> None:
        self._runner.close()


def finished(wire: Wire, peer: Peer, fault: str | None, at: int) -> tuple[str, int]:
    """Play a run to its end, with one accident; returns its id and how many passes it took."""
    code = OrderCode()
    code.hook_url = "http://hook.test/"
    run_id = start(wire, "order")
    passes, is_paid = 0, False
    for _ in range(TURNS_MAX):
        wire.until(lambda: peer.has_pass or not wire.server.invoker.count)
        if wire.server.invoker.count:
            passes += 1
            peer.serve(code, fault if passes == at else None)
            continue
        # A clock that moves while the disk is slow would outrun the run.
        wire.until_decided()
        if wire.server.invoker.count:
            continue
        shown = show(wire, run_id)
        if "endedAt" in shown:
            assert shown["status"] == "succeeded", shown
            assert shown["result"]["paid"] == {"sum": 5}
            return run_id, passes
        if shown["status"] == "waiting" and not is_paid and len(steps(wire, run_id)) == 3:
            assert emit(wire, "paid", {"sum": 5})["woke"] == 1
            is_paid = True
        else:
            # Something rests, and time is all that it needs.
            wire.advance(seconds=0.3)
    raise AssertionError(show(wire, run_id))


def check(wire: Wire, run_id: str) -> None:
    assert [(s["name"], s["status"]) for s in steps(wire, run_id)] == [
        (name, "succeeded") for name in STEPS
    ]
    events = wire.run(wire.server.store.read_history(run_id, 0, 1_000))
    told: list[Json] = [json.loads(event) for event in events]
    facts: Counter[Any] = Counter(
        (event["event_type"], event["payload"].get("name"))
        for event in told
        if event["event_type"].startswith(("Step", "Workflow"))
    )
    assert set(facts.values()) == {1}, facts


@pytest.mark.parametrize(
    ("kind", "fault"),
    [(kind, fault) for kind in (Connected, Served) for fault in (None, *kind.faults)],
)
def test_a_runner_may_be_lost_at_any_pass(
    wire: Wire, kind: type[Connected] | type[Served], fault: str | None
) -> None:
    peer: Peer = kind(wire)
    played = 0
    for at in range(1, PASSES + 1) if fault else (1,):
        run_id, passes = finished(wire, peer, fault, at)
        check(wire, run_id)
        played += 1
        assert passes >= PASSES or fault is None, passes
    kids = [row for row in rows(wire, "/runs?limit=200") if row["workflowName"] == "kid"]
    assert len(kids) == played
    names = Counter(row["name"] for row in rows(wire, "/events?limit=200"))
    assert names == {"order": played, "paid": played, "shipped": played}
    assert len(rows(wire, "/webhook-deliveries")) == played
    peer.close()
