"""What makes no sense, from people and from code: refused with a reason, and nothing changes."""

from typing import Any

import pytest

from perdure.core import limits
from tests.support.http import Json, Wire
from tests.support.runner import a_runner, op, ran, rows, settled, start, workflow
from tests.wire.push.test_push_people import ASKED, asks, decide, score


def test_a_decision_that_makes_no_sense_changes_nothing(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    approval_id = asks(runner, wire)["id"]
    path = f"/approvals/{approval_id}/decision"

    with wire.nothing_changes():
        for body in (
            {},
            {"status": "pending"},
            {"status": 1},
            {"status": "approved", "decidedBy": " "},
            {"status": "approved", "decidedBy": "x" * 256},
            {"status": "approved", "decidedBy": 5},
            {"status": "denied", "decidedBy": "system:timeout"},
            {"status": "approved", "args": "x" * limits.APPROVAL_ARGUMENT_BYTES_MAX},
        ):
            wire.call("POST", path, body).refused(400, "validation_failed")
        wire.call("POST", path).refused(400, "validation_failed")
        decide(wire, "nobody").refused(404, "approval_not_found")
        wire.call("GET", "/approvals/nobody").refused(404, "approval_not_found")


def test_an_approval_that_makes_no_sense_fails_its_run(wire: Wire) -> None:
    nonsense: tuple[tuple[Json, str], ...] = (
        ({"tool": " "}, "Approval needs a tool"),
        ({"tool": None}, "Approval needs a tool"),
        ({"risk": "deadly"}, "the risk of an approval"),
        ({"summary": "x" * (limits.APPROVAL_TEXT_LENGTH_MAX + 1)}, "texts of"),
        ({"data": "x" * limits.APPROVAL_ARGUMENT_BYTES_MAX}, "bytes"),
    )
    runner = a_runner(wire, workflow("order"))

    for members, why in nonsense:
        run_id = start(wire, "order")
        runner.next().found(op("Approval", "ok", **{**ASKED, **members}))
        assert why in settled(wire, run_id, "failed")["error"]["message"]

    assert rows(wire, "/approvals") == []


def test_a_score_that_makes_no_sense_changes_nothing(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")
    runner.next().returned()
    settled(wire, run_id, "succeeded")
    monkeypatch.setattr("perdure.core.push.score.SCORES_PER_RUN_MAX", 0)

    with wire.nothing_changes():
        for body in (
            {},
            {"name": " ", "value": 1},
            {"name": "x" * 256, "value": 1},
            {"name": "q"},
            {"name": "q", "value": "much"},
            {"name": "q", "value": 1, "stringValue": "a"},
            {"name": "q", "value": 2, "dataType": "boolean"},
            {"name": "q", "value": 2, "dataType": "categorical"},
            {"name": "q", "stringValue": "a", "dataType": "numeric"},
            {"name": "q", "value": 1, "dataType": "guess"},
            {"name": "q", "value": 1, "source": "rumour"},
            {"name": "q", "value": 1, "runId": "another"},
            {"name": "q", "value": 1, "dedupeId": ""},
            {"name": "q", "value": 1, "comment": "x" * (limits.SCORE_TEXT_LENGTH_MAX + 1)},
        ):
            score(wire, run_id, **body).refused(400, "validation_failed")
        score(wire, "nobody", name="q", value=1).refused(404, "run_not_found")
        wire.call("GET", "/runs/nobody/scores").refused(404, "run_not_found")
        score(wire, run_id, name="q", value=1).refused(409, "too_many_scores")


def test_an_opcode_of_a_score_that_makes_no_sense_fails_its_run(wire: Wire) -> None:
    nonsense: tuple[tuple[Any, str], ...] = (
        ({"value": 1}, "name"),
        ({"name": "q"}, "needs a value"),
        ({"name": "q", "value": 1, "source": "human"}, "not human"),
        ({"name": "q", "value": 0.5, "dataType": "boolean"}, "0 or 1"),
        (5, "is not valid"),
    )
    runner = a_runner(wire, workflow("order"))

    for data, why in nonsense:
        run_id = start(wire, "order")
        runner.next().found(op("Score", "score:q", data=data))
        assert why in settled(wire, run_id, "failed")["error"]["message"]
        assert rows(wire, f"/runs/{run_id}/scores") == []


def test_a_fork_that_makes_no_sense_starts_nothing(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")
    invoke = runner.next()
    path = f"/runs/{run_id}/fork"

    wire.call("POST", path, {"step": "one"}).refused(409, "run_not_finished")
    invoke.found(ran("one", 1))
    runner.next().returned()
    settled(wire, run_id, "succeeded")

    with wire.nothing_changes():
        for body in (
            {},
            {"step": "never"},
            {"step": 1},
            {"step": "one", "params": [1]},
            {"step": "one", "model": 5},
            {"step": "one", "prompt": "x" * limits.FORK_BYTES_MAX},
            {"step": "one", "dedupeId": "x" * 256},
        ):
            wire.call("POST", path, body).refused(400, "validation_failed")
        wire.call("POST", "/runs/nobody/fork", {"step": "one"}).refused(404, "run_not_found")


def test_nobody_explains_a_run_without_a_model(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")
    runner.next().returned()
    settled(wire, run_id, "succeeded")

    with wire.nothing_changes():
        wire.call("POST", f"/runs/{run_id}/explain").refused(501, "ai_provider_missing")
        wire.call("POST", "/runs/nobody/explain").refused(404, "run_not_found")
