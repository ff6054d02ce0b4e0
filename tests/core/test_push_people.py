"""Approvals, scores and conversations: the rules, without a disk."""

import json
from typing import Any

import pytest
from msgspec import structs

from perdure.core.limits import SECOND
from perdure.core.push import score as scoring
from perdure.core.push.approval import Approval, Decision, decided
from perdure.core.push.approval_step import (
    ask_approval,
    find_asking,
    finish_approval,
    time_out_approval,
)
from perdure.core.push.command import AskApproval
from perdure.core.push.effect import ApprovalMoved, AskedPeople
from perdure.core.push.score import judge, judgement_of, was_judged
from perdure.core.push.start import PushStart, start_push_run
from perdure.core.push.step import cancel_open_steps, push_of
from perdure.core.rejection import ApprovalNotPending, TooManyScores
from perdure.core.run.cause import next_cause
from perdure.core.run.context import Context
from perdure.core.run.operation import PushStep, StepState
from perdure.core.run.push import Spent
from perdure.core.run.state import Run
from perdure.core.run.status import RunStatus
from perdure.features.conversations.rules import Conversation, joined, left, merged
from perdure.identity import IdSource

HOUR = 3_600 * SECOND
YES = Decision(status="approved", decided_by="ann")


def ctx(now: int = 1_000 * SECOND) -> Context:
    return Context(now, IdSource(lambda: now))


def a_run(now: int = 1_000 * SECOND, **members: Any) -> Run:
    """A push run that is paused."""
    start = PushStart(
        namespace="default",
        app="shop",
        workflow="order",
        arguments=b'{"event":{"name":"order","data":null}}',
        event_name="order",
        **members,
    )
    run = start_push_run(start, ctx(now))
    run.task, run.status = None, RunStatus.WAITING
    run.unsaved.effects.clear()
    return run


def asking(run: Run, **members: Any) -> tuple[PushStep, Approval]:
    command = AskApproval(step_id="1", name="ok", tool="pay", args=b'{"n":5}', **members)
    ask_approval(run, ctx(), command)
    (asked,) = run.unsaved.effects
    assert isinstance(asked, AskedPeople)
    run.unsaved.effects.clear()
    step = find_asking(run, asked.approval)
    assert step is not None
    return step, asked.approval


def memo(step: PushStep) -> Any:
    return json.loads(b"{" + step.entry + b"}")["1"]["data"]


# Approvals ----------------------------------------------------------------------------------------


def test_a_step_waits_and_says_for_what() -> None:
    run = a_run()
    step, approval = asking(run, timeout=HOUR)

    assert (step.state, step.fire_at) == (StepState.WAITING, approval.expires_at)
    assert (approval.status, approval.risk) == ("pending", "medium")
    cause = next_cause(run)
    assert cause is not None
    assert (cause.kind, cause.until) == ("approval", approval.expires_at)
    assert step.approval is not None
    assert cause.approval_id == step.approval.approval_id


@pytest.mark.parametrize(
    ("decision", "args"),
    [
        (YES, {"n": 5}),
        (Decision(status="denied", decided_by="ann", args=b"null"), None),
        (Decision(status="approved", decided_by="ann", args=b"[1]"), [1]),
    ],
)
def test_the_code_is_told_what_was_decided(decision: Decision, args: Any) -> None:
    run = a_run()
    step, approval = asking(run)

    finish_approval(run, ctx(), step, decision)

    assert memo(step) == {"status": decision.status, "args": args, "decidedBy": "ann"}
    assert run.task is not None
    assert find_asking(run, approval) is None


def test_a_window_ends_in_another_one_or_in_no() -> None:
    run = a_run()
    step, approval = asking(run, timeout=HOUR, escalates_to="boss")

    time_out_approval(run, ctx(approval.requested_at + HOUR), step)

    (moved,) = run.unsaved.effects
    assert isinstance(moved, ApprovalMoved)
    assert (moved.status, moved.expires_at) == ("escalated", approval.requested_at + 2 * HOUR)
    assert find_asking(run, approval) is step
    assert run.task is None
    time_out_approval(run, ctx(approval.requested_at + 2 * HOUR), step)
    moved = run.unsaved.effects[-1]
    assert isinstance(moved, ApprovalMoved)
    assert (moved.status, moved.decided_by) == ("denied", "system:timeout")
    assert memo(step)["status"] == "denied"


def test_a_window_of_no_length_is_not_doubled() -> None:
    run = a_run()
    step, _ = asking(run, timeout=0, escalates_to="boss")

    time_out_approval(run, ctx(), step)

    assert memo(step)["decidedBy"] == "system:timeout"


def test_a_run_that_ends_asks_no_more() -> None:
    run = a_run()
    asking(run)

    cancel_open_steps(run, ctx())

    (moved,) = run.unsaved.effects
    assert isinstance(moved, ApprovalMoved)
    assert (moved.status, moved.decided_by) == ("cancelled", None)


@pytest.mark.parametrize("status", ["pending", "escalated"])
def test_the_first_decision_stands(status: Any) -> None:
    _, asked = asking(a_run())
    after = decided(structs.replace(asked, status=status), YES, 5)

    assert (after.status, after.decided_by, after.decided_at) == ("approved", "ann", 5)
    assert decided(after, YES, 9) is after
    for other in (
        structs.replace(YES, decided_by="bob"),
        structs.replace(YES, status="denied"),
        structs.replace(YES, args=b"1"),
    ):
        with pytest.raises(ApprovalNotPending):
            decided(after, other, 9)


def test_an_approval_that_is_no_longer_needed_cannot_be_decided() -> None:
    _, asked = asking(a_run())

    with pytest.raises(ApprovalNotPending):
        decided(structs.replace(asked, status="cancelled"), YES, 5)


# Scores -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "kind", "value"),
    [
        ({"value": 0.5}, "numeric", 0.5),
        ({"value": True}, "boolean", 1.0),
        ({"value": 0, "data_type": "boolean"}, "boolean", 0.0),
        ({"text": "kind"}, "categorical", None),
        ({"text": "", "data_type": "categorical"}, "categorical", None),
    ],
)
def test_a_judgement_is_made_whole(told: dict[str, Any], kind: str, value: float | None) -> None:
    whole: dict[str, Any] = {"value": None, "text": None, "data_type": None, **told}
    judgement = judgement_of(name="q", source="code", **whole)

    assert (judgement.data_type, judgement.value) == (kind, value)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_only_numbers_are_judgements(value: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        judgement_of(name="q", value=value, text=None, data_type=None, source="code")


def scored(*values: float | str, name: str = "q") -> Run:
    run = a_run()
    for value in values:
        number = None if isinstance(value, str) else value
        text = value if isinstance(value, str) else None
        judge(run, judgement_of(name=name, value=number, text=text, data_type=None, source="code"))
    return run


def test_any_score_within_the_bounds_finds_a_run() -> None:
    run = scored(0.1, 0.9, 0.9, "kind")

    assert was_judged(run, name="q")
    assert was_judged(run, name=None, least=0.5)
    assert was_judged(run, name="q", most=0.1)
    assert not was_judged(run, name="q", least=0.2, most=0.8)
    assert not was_judged(run, name="other", least=0)
    assert not was_judged(a_run(), name=None)
    judged = push_of(run).judged["q"]
    assert (judged.count, judged.numbers) == (4, 3)
    assert judged.total == pytest.approx(1.9)
    assert sorted(judged.values) == [0.1, 0.9]


def test_a_run_has_so_many_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "SCORES_PER_RUN_MAX", 2)

    with pytest.raises(TooManyScores, match="2 scores"):
        scored(1, 2, 3)


def test_a_run_has_scores_of_so_many_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "SCORE_NAMES_PER_RUN_MAX", 1)
    run = scored(1, 2)

    with pytest.raises(TooManyScores, match="1 names"):
        judge(run, judgement_of(name="z", value=1, text=None, data_type=None, source="code"))

    assert list(push_of(run).judged) == ["q"]


# Conversations ------------------------------------------------------------------------------------


def test_runs_of_a_conversation_come_and_go() -> None:
    early, late = a_run(session="s"), a_run(1_000 * SECOND + HOUR, session="s")
    push_of(early).spent = Spent(calls=1, tokens=5)
    push_of(late).spent = Spent(calls=1, tokens=2, cost=3)

    # In any order: clocks of nodes differ.
    both = joined(joined(None, late), early)
    assert (both.first_started_at, both.last_started_at) == (early.started_at, late.started_at)
    early.status, late.status = RunStatus.COMPLETED, RunStatus.FAILED
    over = left(left(both, early), late)

    assert (over.runs, over.ended) == (2, {"completed": 1, "failed": 1})
    assert over.spent == Spent(calls=2, tokens=7, cost=3)


def test_the_parts_of_a_conversation_are_one() -> None:
    def part(app: str, first: int, last: int, **members: Any) -> Conversation:
        return Conversation(
            session="s", app=app, first_started_at=first, last_started_at=last, **members
        )

    whole = merged(
        [
            part("a", 5, 9, runs=2, ended={"completed": 1}),
            part("b", 3, 7, runs=3, ended={"completed": 1, "failed": 1}, spent=Spent(tokens=1)),
        ]
    )

    assert (whole.first_started_at, whole.last_started_at, whole.runs) == (3, 9, 5)
    assert whole.ended == {"completed": 2, "failed": 1}
    assert whole.spent == Spent(tokens=1)
