"""In what runners answer, an optional member that is null is one that is absent."""

import json
from typing import Any

import pytest

from perdure.protocols.durablex.invoke import reply_of
from tests.support.runner import op, ran

VALUES = {"data", "input", "childData"}
"""Of a value, null is one."""
FULL = {
    "StepRun": ran("a", 1, retriable=True, retry={"maxAttempts": 2}, dataRef=None),
    "Skip": op("Skip", "a"),
    "Sleep": op("Sleep", "a", sleepMs=5),
    "SleepUntil": op("SleepUntil", "a", sleepUntilMs=5),
    "WaitForEvent": op("WaitForEvent", "a", eventName="e"),
    "RunWorkflow": op("RunWorkflow", "a", childName="c"),
    "Emit": op("Emit", "a", eventName="e"),
    "Webhook": op("Webhook", "a", webhookUrl="http://x/"),
    "Infer": op("Infer", "a", data={"messages": [{}], "model": None, "maxTokens": None}),
    "Approval": op("Approval", "a", tool="t"),
    "Score": op("Score", "a", data={"name": "s", "value": 1}),
}
OPTIONS = [
    "data",
    "dataRef",
    "error",
    "retriable",
    "retryAfterMs",
    "retry",
    "input",
    "ai",
    "usage",
    "sleepMs",
    "sleepUntilMs",
    "eventName",
    "eventIf",
    "timeoutMs",
    "childName",
    "childApp",
    "childRunner",
    "childData",
    "targetApp",
    "dedupeId",
    "webhookUrl",
    "tool",
    "risk",
    "summary",
    "policy",
    "context",
    "escalatesTo",
]
LINE = {"level": "info", "message": "m", "scope": "@root", "index": 0}


def reply(status: int = 206, **body: Any) -> object:
    return reply_of(status, json.dumps(body).encode())


@pytest.mark.parametrize("kind", FULL)
def test_a_null_option_of_an_opcode_is_absent(kind: str) -> None:
    known = reply(opcodes=[FULL[kind]])
    assert "commands" in repr(known)
    for option in OPTIONS:
        if option not in FULL[kind] and option not in VALUES:
            assert reply(opcodes=[{**FULL[kind], option: None}]) == known, option


@pytest.mark.parametrize("member", ["maxAttempts", "backoff", "initialDelayMs", "maxDelayMs"])
def test_a_null_member_of_a_retry_policy_is_absent(member: str) -> None:
    policy = {"maxAttempts": 3, "backoff": "linear", "initialDelayMs": 5, "maxDelayMs": 6}
    del policy[member]
    known = reply(opcodes=[ran("a", retry=policy)])
    assert "commands" in repr(known)
    assert reply(opcodes=[ran("a", retry={**policy, member: None})]) == known


def test_a_null_member_of_what_a_step_used_up_is_absent() -> None:
    known = reply(opcodes=[ran("a", usage={"tokensIn": 1}, ai={})])
    nothing = dict.fromkeys(("model", "tokensOut", "cost", "latencyMs"))
    again = reply(
        opcodes=[ran("a", usage={"tokensIn": 1, **nothing}, ai={"cacheReadTokens": None})]
    )
    for one in (known, again):
        assert one.commands[0].metered.tokens == 1  # type: ignore[attr-defined]
    assert known.commands[0].metered == again.commands[0].metered  # type: ignore[attr-defined]


@pytest.mark.parametrize("option", ["error", "logs", "opcodes", "ended"])
def test_a_null_member_of_an_answer_is_absent(option: str) -> None:
    assert reply(200, data=1, **{option: None}) == reply(200, data=1)
    if option != "opcodes":
        assert reply(206, opcodes=[], **{option: None}) == reply(206, opcodes=[])
    for status in (400, 500):
        assert reply(status, **{option: None}) == reply(status)


def test_the_error_of_a_result_may_be_null_beside_its_data() -> None:
    assert reply(opcodes=[ran("a", 1, error=None)]) == reply(opcodes=[ran("a", 1)])


def test_the_fields_of_a_line_may_be_null() -> None:
    assert reply(opcodes=[], logs=[{**LINE, "fields": None}]) == reply(opcodes=[], logs=[LINE])
