"""What people do for runs and say about them: approvals, scores, forks."""

from typing import Any

import pytest

from tests.support.http import Answer, Json, Wire
from tests.support.runner import (
    HandRunner,
    a_runner,
    broke,
    op,
    ran,
    rows,
    settled,
    show,
    start,
    steps,
    workflow,
)

ASKED = {"tool": "refund", "data": {"amount": 5}, "risk": "high", "summary": "a refund"}


def asks(runner: HandRunner, wire: Wire, name: str = "ok", **members: Any) -> Json:
    """A run stands at an approval, which is returned."""
    run_id = start(wire, "order")
    runner.next().found(op("Approval", name, **{**ASKED, **members}))
    settled(wire, run_id, "needs_attention")
    (approval,) = rows(wire, f"/approvals?runId={run_id}")
    return approval


def decide(wire: Wire, approval_id: str, status: str = "approved", **members: Any) -> Answer:
    path = f"/approvals/{approval_id}/decision"
    return wire.call("POST", path, {"status": status, **members})


# Approvals ----------------------------------------------------------------------------------------


def test_a_run_waits_for_somebody_and_goes_on_with_what_was_decided(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    approval = asks(runner, wire, policy="p1", context="c", escalatesTo="boss")
    run_id = approval["runId"]

    assert approval | {"id": "", "requestedAt": ""} == {
        "id": "",
        "runId": run_id,
        "risk": "high",
        "status": "pending",
        "requestedAt": "",
        "workflow": "order",
        "app": "shop",
        "step": "ok",
        "tool": "refund",
        "args": {"amount": 5},
        "policy": "p1",
        "summary": "a refund",
        "context": "c",
        "escalatesTo": "boss",
    }
    run = show(wire, run_id)
    assert run["nextCause"]["kind"] == "approval"
    assert run["nextCause"]["approvalId"] == approval["id"]
    assert "refund" in run["waitReason"]
    (step,) = steps(wire, run_id)
    assert (step["status"], step["approvalId"]) == ("waiting", approval["id"])
    assert step["input"] == {"amount": 5}

    told = decide(wire, approval["id"], decidedBy="ann").ok()

    assert (told["status"], told["decidedBy"]) == ("approved", "ann")
    invoke = runner.next()
    assert invoke.memo("ok") == {
        "data": {"status": "approved", "args": {"amount": 5}, "decidedBy": "ann"}
    }
    invoke.returned()
    settled(wire, run_id, "succeeded")
    assert wire.call("GET", f"/approvals/{approval['id']}").ok() == told
    stream = wire.call("GET", f"/runs/{run_id}/stream").content
    assert [word for word in (b"needs_attention", b"succeeded") if word in stream] == [
        b"needs_attention",
        b"succeeded",
    ]
    (done,) = rows(wire, "/control-actions?action=approve")
    assert (done["actor"], done["runId"], done["detail"]) == ("ann", run_id, "ok")


def test_a_decision_may_change_what_was_asked_for(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    first, second = asks(runner, wire), asks(runner, wire)

    told = decide(wire, first["id"], args={"amount": 3}).ok()

    assert (told["args"], told["editedArgs"]) == ({"amount": 5}, {"amount": 3})
    invoke = runner.next()
    assert invoke.memo("ok") == {
        "data": {"status": "approved", "args": {"amount": 3}, "decidedBy": "anonymous"}
    }
    invoke.returned()
    decide(wire, second["id"], "denied", args=None).ok()
    assert runner.next().memo("ok") == {
        "data": {"status": "denied", "args": None, "decidedBy": "anonymous"}
    }


def test_the_first_decision_stands_and_said_again_changes_nothing(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    approval = asks(runner, wire)
    told = decide(wire, approval["id"], decidedBy="ann").ok()
    invoke = runner.next()

    with wire.nothing_changes():
        assert decide(wire, approval["id"], decidedBy="ann").ok() == told
        for other in ({"decidedBy": "bob"}, {"decidedBy": "ann", "args": 1}):
            refusal = decide(wire, approval["id"], **other)
            assert refusal.refused(409, "approval_not_pending")["status"] == "approved"
        decide(wire, approval["id"], "denied", decidedBy="ann").refused(409, "approval_not_pending")

    invoke.returned()
    settled(wire, approval["runId"], "succeeded")
    assert runner.has_nothing()
    assert len(rows(wire, "/control-actions")) == 1


def test_nobody_decides_in_time_and_the_answer_is_no(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    approval = asks(runner, wire, timeoutMs=60_000)
    assert approval["expiresAt"]

    wire.advance(seconds=59)
    assert runner.has_nothing()
    wire.advance(seconds=2)

    assert runner.next().memo("ok") == {
        "data": {"status": "denied", "args": {"amount": 5}, "decidedBy": "system:timeout"}
    }
    (row,) = rows(wire, "/approvals?status=denied")
    assert (row["id"], row["decidedBy"]) == (approval["id"], "system:timeout")
    decide(wire, approval["id"]).refused(409, "approval_not_pending")


def test_somebody_else_is_asked_once_before_the_answer_is_no(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    lost = asks(runner, wire, timeoutMs=60_000, escalatesTo="boss")
    saved = asks(runner, wire, timeoutMs=60_000, escalatesTo="boss")

    wire.advance(seconds=61)

    escalated = rows(wire, "/approvals?status=escalated")
    assert {row["id"] for row in escalated} == {lost["id"], saved["id"]}
    assert all(row["expiresAt"] > lost["expiresAt"] for row in escalated)
    assert rows(wire, "/approvals?status=pending") == []
    assert "boss was asked" in show(wire, lost["runId"])["waitReason"]
    assert show(wire, lost["runId"])["status"] == "needs_attention"
    decide(wire, saved["id"]).ok()
    invoke = runner.next()
    assert invoke.run_id == saved["runId"]
    invoke.returned()
    wire.advance(seconds=61)
    assert runner.next().run_id == lost["runId"]
    assert wire.call("GET", f"/approvals/{lost['id']}").ok()["status"] == "denied"


@pytest.mark.parametrize("end", ["cancel", "fail", "return"])
def test_what_a_run_asked_for_is_cancelled_with_it(wire: Wire, end: str) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")
    invoke = runner.next()
    if end == "fail":
        invoke.found(op("Approval", "ok", **ASKED), broke("charge", retriable=False))
        settled(wire, run_id, "failed")
    else:
        invoke.found(op("Approval", "ok", **ASKED), ran("charge", 1))
        again = runner.next()
        if end == "return":
            again.returned()
            settled(wire, run_id, "succeeded")
        else:
            again.found()
            settled(wire, run_id, "needs_attention")
            wire.call("POST", f"/runs/{run_id}/cancel").ok()

    (approval,) = rows(wire, "/approvals?status=cancelled")
    assert approval["runId"] == run_id
    assert "decidedBy" not in approval
    with wire.nothing_changes():
        refusal = decide(wire, approval["id"]).refused(409, "approval_not_pending")
    assert refusal["status"] == "cancelled"


def test_a_run_needs_attention_only_while_nothing_else_moves_it(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")
    runner.next().found(op("Approval", "ok", **ASKED), op("Sleep", "nap", sleepMs=10_000))
    settled(wire, run_id, "waiting")

    wire.advance(seconds=11)
    runner.next().found()

    settled(wire, run_id, "needs_attention")
    assert [row["id"] for row in rows(wire, "/runs?status=needs_attention")] == [run_id]
    assert rows(wire, "/runs?status=waiting") == []
    assert wire.call("GET", "/runs/stats").ok()["running"] == 1
    wire.call("POST", f"/runs/{run_id}/pause").ok()
    (approval,) = rows(wire, "/approvals")
    decide(wire, approval["id"]).ok()
    assert runner.has_nothing()
    wire.call("POST", f"/runs/{run_id}/resume").ok()
    assert runner.next().memo("ok")["data"]["status"] == "approved"  # type: ignore[index]


def test_a_decision_during_a_pass_is_told_in_the_next_one(wire: Wire) -> None:
    limited = workflow("order", concurrency={"limit": 1})
    runner = a_runner(wire, limited, sdkName="duraton", language="python")
    run_id = start(wire, "order")
    runner.next().found(op("Approval", "ok", **ASKED), op("Sleep", "nap", sleepMs=1_000))
    settled(wire, run_id, "waiting")
    wire.advance(seconds=2)
    during = runner.next()
    (approval,) = rows(wire, "/approvals")

    decide(wire, approval["id"]).ok()
    during.found(op("Approval", "ok", **ASKED), op("Sleep", "more", sleepMs=60_000))

    after = runner.next()
    assert after.memo("ok")["data"]["status"] == "approved"  # type: ignore[index]
    after.found()
    # Nobody needs to look at it, and while it waits another may have its place.
    settled(wire, run_id, "waiting")
    start(wire, "order")
    other = runner.next()
    assert other.run_id != run_id
    other.found(op("Approval", "ok", **ASKED))
    settled(wire, other.run_id, "needs_attention")
    version = {"X-Durable-Workflow-Control-Plane-Version": "2"}
    path = f"/api/workflows/{other.run_id}/terminate"
    assert wire.call("POST", path, {}, headers=version).status == 200
    (dropped,) = rows(wire, "/approvals?status=cancelled")
    assert dropped["runId"] == other.run_id
    assert len(rows(wire, "/approvals")) == 2


def test_a_decision_and_its_run_survive_a_restart(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    approval = asks(runner, wire)
    runner.vanish()
    told = decide(wire, approval["id"]).ok()

    wire.restart()

    assert wire.call("GET", f"/approvals/{approval['id']}").ok() == told
    invoke = a_runner(wire, workflow("order")).next()
    assert invoke.memo("ok")["data"]["status"] == "approved"  # type: ignore[index]


def test_approvals_are_listed_newest_first(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    ids = []
    for _ in range(3):
        ids.append(asks(runner, wire)["id"])
        wire.advance(seconds=1)

    assert [row["id"] for row in rows(wire, "/approvals")] == ids[::-1]
    assert [row["id"] for row in rows(wire, "/approvals?limit=2")] == ids[:0:-1]
    assert [row["id"] for row in rows(wire, "/approvals?status=pending&limit=1")] == ids[2:]
    assert rows(wire, "/approvals?runId=nobody") == []
    decide(wire, ids[1]).ok()
    (first,) = rows(wire, f"/approvals?runId={show(wire, runner.next().run_id)['id']}")
    assert first["id"] == ids[1]
    assert rows(wire, f"/approvals?runId={first['runId']}&status=pending") == []
    wire.call("GET", "/approvals?status=maybe").refused(400, "validation_failed")
    wire.call("GET", "/approvals?limit=0").refused(400, "validation_failed")


# Scores -------------------------------------------------------------------------------------------


def score(wire: Wire, run_id: str, **members: Any) -> Answer:
    return wire.call("POST", f"/runs/{run_id}/scores", members)


def judges(name: str, run_step: str = "", **members: Any) -> Json:
    return op("Score", run_step or f"score:{name}", data={"name": name, **members})


def test_code_judges_its_run_once(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")
    scores = [
        judges("quality", value=0.5, comment="so so"),
        judges("safe", value=1, dataType="boolean", source="llm-judge"),
        judges("tone", stringValue="kind"),
    ]

    runner.next().found(*scores)
    invoke = runner.next()
    assert invoke.memo("score:quality") == {"data": None}
    invoke.found(*scores, op("Sleep", "nap", sleepMs=1))
    settled(wire, run_id, "waiting", scoreCount=3)

    found = rows(wire, f"/runs/{run_id}/scores")
    assert [row["name"] for row in found] == ["tone", "safe", "quality"]
    assert found[2] | {"id": "", "createdAt": ""} == {
        "id": "",
        "runId": run_id,
        "name": "quality",
        "dataType": "numeric",
        "source": "code",
        "createdAt": "",
        "value": 0.5,
        "comment": "so so",
        "scorer": "order",
    }
    assert (found[1]["dataType"], found[1]["source"]) == ("boolean", "llm-judge")
    assert (found[0]["dataType"], found[0]["stringValue"]) == ("categorical", "kind")


def test_a_run_judges_another_and_learns_when_there_is_none(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"), workflow("judge"))
    judged = start(wire, "order")
    runner.next().returned()
    settled(wire, judged, "succeeded")
    judge = start(wire, "judge")

    runner.next().found(
        judges("quality", value=1, runId=judged), judges("lost", value=1, runId="nobody")
    )

    invoke = runner.next()
    assert invoke.memo("score:quality") == {"data": None}
    assert invoke.memo("score:lost") == {"error": {"message": "there is no run nobody"}}
    (row,) = rows(wire, f"/runs/{judged}/scores")
    assert (row["scorer"], row["value"]) == ("judge", 1)
    assert rows(wire, f"/runs/{judge}/scores") == []
    assert show(wire, judged)["scoreCount"] == 1


def test_people_judge_a_run_that_is_over(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")
    runner.next().found(ran("charge", 1))
    runner.next().returned("done")
    before = settled(wire, run_id, "succeeded")

    told = score(wire, run_id, name="quality", value=0.25, step="charge", dedupeId="d1").ok()

    assert (told["source"], told["scorer"], told["step"]) == ("human", "anonymous", "charge")
    with wire.nothing_changes():
        again = score(wire, run_id, name="quality", value=0.25, step="charge", dedupeId="d1")
        assert again.ok() == told
    score(wire, run_id, name="quality", value=0.25, runId=run_id).ok()
    assert len(rows(wire, f"/runs/{run_id}/scores")) == 2
    assert show(wire, run_id) == before | {"scoreCount": 2}
    wire.restart()
    assert show(wire, run_id)["scoreCount"] == 2


def test_runs_are_found_by_their_scores(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    ids = []
    for value in (0.1, 0.5, 0.9):
        ids.append(start(wire, "order"))
        runner.next().found(judges("quality", value=value))
        runner.next().returned()
        settled(wire, ids[-1], "succeeded")
        wire.advance(seconds=1)
    score(wire, ids[0], name="tone", stringValue="kind").ok()

    def found(query: str) -> list[str]:
        return [row["id"] for row in rows(wire, f"/runs?{query}")]

    assert found("scoreName=quality") == ids[::-1]
    assert found("scoreName=tone") == ids[:1]
    assert found("scoreName=quality&minScore=0.5") == [ids[2], ids[1]]
    assert found("scoreName=quality&minScore=0.2&maxScore=0.8") == [ids[1]]
    assert found("maxScore=0.1") == ids[:1]
    assert found("scoreName=tone&minScore=0") == []
    assert found("scoreName=nothing") == []
    wire.call("GET", "/runs?minScore=much").refused(400, "validation_failed")


# Forks --------------------------------------------------------------------------------------------


def test_a_fork_begins_at_a_step_and_tells_the_code_what_to_try(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order", {"n": 1}, session="s1", tags={"a": "b"})
    runner.next().found(ran("one", 1))
    runner.next().found(ran("two", 2))
    runner.next().returned("done")
    settled(wire, run_id, "succeeded")
    body = {"step": "two", "model": "m", "prompt": "p", "params": {"t": 0.5}}

    forked = wire.call("POST", f"/runs/{run_id}/fork", {**body, "dedupeId": "d"}).ok()

    assert (forked["fork"], forked["replayOf"], forked["session"]) == (body, run_id, "s1")
    invoke = runner.next()
    assert invoke.context["fork"] == body
    assert invoke.body["event"]["data"] == {"n": 1}
    assert invoke.memo("one") == {"data": 1}
    assert invoke.memo("two") is None
    again = wire.call("POST", f"/runs/{run_id}/fork", {**body, "dedupeId": "d"}).ok()
    assert again["id"] == forked["id"]
    invoke.returned()
    settled(wire, forked["id"], "succeeded")
    # What follows on a fork tries the same; what begins anew does not.
    assert "fork" not in wire.call("POST", f"/runs/{forked['id']}/replay").ok()
    (done,) = rows(wire, "/control-actions?action=fork")
    assert (done["runId"], done["newRunId"], done["detail"]) == (run_id, forked["id"], "two")


# Sessions -----------------------------------------------------------------------------------------


def test_runs_of_a_session_are_summed_up(wire: Wire) -> None:
    shop, bank = a_runner(wire, workflow("order")), a_runner(wire, workflow("pay"), app="bank")
    usage = {"tokensIn": 3, "tokensOut": 4, "cost": 0.5}
    done = start(wire, "order", session="s1")
    shop.next().found(ran("think", 1, usage=usage))
    shop.next().returned()
    settled(wire, done, "succeeded")
    wire.advance(seconds=10)
    waiting = start(wire, "order", session="s1")
    shop.next().found(ran("think", 1, usage=usage), op("Approval", "ok", **ASKED))
    shop.next().found()
    settled(wire, waiting, "needs_attention")
    other = start(wire, "pay", session="s2")
    bank.next().answer(400, {"error": "no"})
    settled(wire, other, "failed")
    start(wire, "pay")
    unlabelled = bank.next()
    wire.advance(seconds=10)
    paid = start(wire, "pay", session="s1")
    paying = bank.next()

    first, second = rows(wire, "/sessions")

    assert first == {
        "session": "s1",
        "runCount": 3,
        "statusCounts": {"succeeded": 1, "needs_attention": 1, "running": 1},
        "firstStartedAt": show(wire, done)["startedAt"],
        "lastStartedAt": show(wire, paid)["startedAt"],
        "aiTokens": 14,
        "aiCost": 1.0,
    }
    assert (second["session"], second["statusCounts"]) == ("s2", {"failed": 1})
    (of_shop,) = rows(wire, "/sessions?app=shop")
    assert (of_shop["runCount"], of_shop["lastStartedAt"]) == (
        2,
        show(wire, waiting)["startedAt"],
    )
    assert [row["session"] for row in rows(wire, "/sessions?app=bank")] == ["s1", "s2"]
    assert rows(wire, "/sessions?app=nobody") == []
    since = first["lastStartedAt"].replace("Z", "%2B00:00")
    assert [row["session"] for row in rows(wire, f"/sessions?since={since}")] == ["s1"]
    assert [row["session"] for row in rows(wire, "/sessions?limit=1")] == ["s1"]
    paying.returned()
    settled(wire, paid, "succeeded")
    wire.call("POST", f"/runs/{waiting}/cancel").ok()
    unlabelled.returned()
    assert rows(wire, "/sessions")[0]["statusCounts"] == {"succeeded": 2, "cancelled": 1}
    assert rows(wire, "/sessions")[0]["aiTokens"] == 14


def test_sessions_of_one_moment_and_odd_names_do_not_mix(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"), workflow("kid"))
    names = ["a", "a\x1eb", "a\x1eshop", "ä" * 255]
    for name in names:
        run_id = start(wire, "order", session=name)
        runner.next().found(op("RunWorkflow", "kid", childName="kid"))
        runner.next().returned()
        runner.next().returned()
        settled(wire, run_id, "succeeded")

    found = {row["session"]: row["statusCounts"] for row in rows(wire, "/sessions")}

    # What a run calls belongs to its session.
    assert found == {name: {"succeeded": 2} for name in names}
    wire.call("GET", "/sessions?since=soon").refused(400, "validation_failed")
    wire.call("GET", "/sessions?limit=201").refused(400, "validation_failed")
