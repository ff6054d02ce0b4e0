"""What the contract says a runner may send; every message that a test sees is held against it."""

import hashlib
from typing import Any

TEXT, WHOLE, ANY = (str,), (int,), (object,)

OPCODES: dict[str, tuple[dict[str, tuple[type, ...]], dict[str, tuple[type, ...]]]] = {
    "StepRun": (
        {},
        {
            "data": ANY,
            "error": (dict,),
            "retriable": (bool,),
            "retryAfterMs": WHOLE,
            "input": ANY,
            "retry": (dict,),
        },
    ),
    "ExtendPass": ({"timeoutMs": WHOLE}, {}),
    "Sleep": ({"sleepMs": WHOLE}, {}),
    "SleepUntil": ({"sleepUntilMs": WHOLE}, {}),
    "WaitForEvent": ({"eventName": TEXT, "timeoutMs": WHOLE}, {"eventIf": TEXT}),
    "RunWorkflow": (
        {"childName": TEXT},
        {"childData": ANY, "childApp": TEXT, "childRunner": TEXT},
    ),
    "Emit": ({"eventName": TEXT}, {"data": ANY, "targetApp": TEXT, "dedupeId": TEXT}),
    "Webhook": ({"webhookUrl": TEXT}, {"data": ANY}),
    "Skip": ({}, {"data": TEXT}),
    "Approval": (
        {"tool": TEXT},
        {
            "data": ANY,
            "risk": TEXT,
            "summary": TEXT,
            "policy": TEXT,
            "context": TEXT,
            "escalatesTo": TEXT,
            "timeoutMs": WHOLE,
        },
    ),
    "Infer": ({"data": (dict,)}, {}),
    "Score": ({"data": (dict,)}, {}),
}
"""Per opcode: the fields it must have, and those it may have."""

LEVELS = {"debug", "info", "warn", "error"}


def check_reply(status: int, body: Any) -> None:
    """A reply of a pass, over either transport."""
    assert isinstance(body, dict)
    if status == 200:
        assert set(body) == {"data", "logs"}
    elif status == 206:
        assert set(body) == {"opcodes", "logs"}
        ids = [check_opcode(opcode) for opcode in body["opcodes"]]
        assert len(ids) == len(set(ids)), "an id twice in one batch"
    else:
        assert 400 <= status < 600
        assert isinstance(body["error"], str)
        assert set(body) <= {"error", "logs"}
    for line in body.get("logs", []):
        check_line(line)


def check_opcode(opcode: dict[str, Any]) -> str:
    """One opcode; its id."""
    needed, allowed = OPCODES[opcode["op"]]
    rest = {name: value for name, value in opcode.items() if name not in ("op", "id", "name")}
    assert opcode["id"] == hashlib.sha256(opcode["name"].encode()).hexdigest()
    assert set(needed) <= set(rest) <= set(needed) | set(allowed), opcode
    for name, value in rest.items():
        kinds = needed.get(name) or allowed[name]
        assert isinstance(value, kinds), f"{name} of {opcode}"
        if kinds is WHOLE:
            assert isinstance(value, int) and not isinstance(value, bool)  # noqa: PT018
            assert value >= 0
    if opcode["op"] == "StepRun":
        assert ("data" in rest) != ("error" in rest), "a result or a failure, not both"
        assert set(rest.get("error", {})) <= {"message", "stack"}
    return str(opcode["id"])


def check_line(line: dict[str, Any]) -> None:
    """One log line."""
    assert {"level", "message", "scope", "index", "tsMs"} <= set(line)
    assert set(line) <= {"level", "message", "scope", "index", "tsMs", "fields"}
    assert line["level"] in LEVELS
    assert isinstance(line["index"], int)
    assert isinstance(line["tsMs"], int)


def check_registration(told: Any, *, has_url: bool) -> None:
    """A registration, over either transport."""
    assert isinstance(told["app"], str)
    assert told["app"]
    assert ("url" in told) == has_url
    assert told["protocolVersion"] == 1
    assert told["minProtocolVersion"] <= 1 <= told["maxProtocolVersion"]
    assert isinstance(told["workflows"], list)
    names = [workflow["name"] for workflow in told["workflows"]]
    assert len(names) == len(set(names))
    for name in ("runtime", "language", "version", "sdkName", "framework"):
        assert isinstance(told[name], str)


def check_message(message: Any) -> None:
    """One message over a socket, runner to engine."""
    assert isinstance(message, dict)
    assert set(message) <= {"type", "id", "payload"}
    if message["type"] == "runner.register":
        assert "id" not in message
        check_registration(message["payload"], has_url=False)
    elif message["type"] == "invoke.result":
        assert isinstance(message["id"], str)
        assert set(message["payload"]) == {"status", "body"}
        assert message["payload"]["status"] in (200, 206, 400, 500, 503)
        check_reply(message["payload"]["status"], message["payload"]["body"])
    elif message["type"] == "invoke.heartbeat":
        assert all(isinstance(id, str) for id in message["payload"]["ids"])
    else:
        assert message in ({"type": "ping"}, {"type": "runner.leave"})
