"""Numbers that no double holds are refused on every route that takes JSON, wherever they stand."""

import json
import re
from collections.abc import Iterator

import pytest

from tests.support.http import CONTROL_VERSION, WORKER_VERSION, Json, Wire
from tests.support.runner import a_runner, dial, op, ran, settled, start, workflow
from tests.wire.pull.test_empty_maps import routes_with_bodies
from tests.wire.pull.test_odd_values import places, put

LARGE = {
    "exponent": "1e400",
    "negative": "-2.5E+0309",
    "digits": "9" * 5_000,
    "both": "9" * 300 + "e20",
}
FITS = {"odd": [1e308, 2**70, -0.0], "texts": ["1e400", "9" * 400, 'e999\\"1e400'], "1e999": 1}
HEADERS = {
    CONTROL_VERSION: "2",
    WORKER_VERSION: "1.20",
    "X-Durablex-Protocol-Version": "1",
    "Content-Type": "application/json",
}
ODD = (
    None,
    "",
    "x" * 300,
    -1,
    1.5,
    2**63,
    10**300,
    [None],
    {"": None},
    {"codec": "avro", "blob": 5},
)


def spelled(document: Json, number: str) -> bytes:
    """A document with a number that Python would not write in the place of a mark."""
    return json.dumps(document).replace('"<number>"', number).encode()


@pytest.mark.parametrize("number", LARGE.values(), ids=LARGE)
def test_a_number_that_does_not_fit_is_refused_on_every_route(
    shared_wire: Wire, number: str
) -> None:
    through = {}
    for route in routes_with_bodies(shared_wire):
        path = re.sub(r"\{\w+\}", "w~x-1~1", route.path)
        for document in ({"input": "<number>"}, {"unknown": [{"deep": "<number>"}]}):
            content = spelled(document, number)
            answer = shared_wire.call(route.method, path, content=content, headers=HEADERS)
            if not (400 <= answer.status < 500):
                through[f"{route.method} {route.path}"] = answer.status, answer.content
    assert through == {}


def test_the_refusal_says_what_is_wrong(shared_wire: Wire) -> None:
    content = spelled({"name": "order", "data": {"total": "<number>"}}, "1e400")
    for path, reason in (("/events", "validation_failed"), ("/api/workflows", "malformed_json")):
        answer = shared_wire.call("POST", path, content=content, headers=HEADERS)
        answer.refused(400, reason)
        assert b"1e400" in answer.content


def test_numbers_that_fit_and_texts_that_look_large_are_taken(shared_wire: Wire) -> None:
    runner = a_runner(shared_wire, workflow("fits", triggers=[{"event": "fits"}]))
    shared_wire.call("POST", "/events", {"name": "fits", "data": FITS}).ok(202)
    invoked = runner.next()
    assert invoked.body["event"]["data"] == FITS
    invoked.returned()


def bodies(wire: Wire) -> Iterator[tuple[str, str, Json]]:
    """A call of each push route that would succeed, or nearly."""
    run_id = start(wire, "order")
    keyed = {"key": "account.id"}
    flow = {"singleton": {**keyed, "mode": "skip"}, "concurrency": {"limit": 5, **keyed}}
    retry = {"maxAttempts": 2, "backoff": "fixed", "initialDelayMs": 5, "maxDelayMs": 6}
    trigger = {"event": "odd.*", "if": "event.data.total * 1.2 > 100"}
    odd = {"name": "odd", "triggers": [trigger], "retry": retry, **flow}
    yield "POST", "/register", {"app": "odd", "url": "http://127.0.0.1:9/x", "workflows": [odd]}
    data = {"total": 1, "account": {"id": 1}}
    event = {"name": "odd.event", "data": data, "tags": {"a": "b"}, "session": "s"}
    yield "POST", "/events", {**event, "app": "shop", "runner": "r", "targetApp": "shop"}
    given = {"input": data, "eventName": "e", "tags": {"a": "b"}}
    yield "POST", "/workflows/shop/order/trigger", {**given, "runner": "r"}
    yield "POST", f"/runs/{run_id}/scores", {"name": "s", "value": 0.5, "comment": "c"}
    yield "POST", f"/runs/{run_id}/fork", {"step": "a", "model": "m", "params": {"a": 1}}
    yield "POST", f"/runs/{run_id}/explain", {"model": "m"}
    for verb in ("pause", "resume", "retry-from-step", "replay", "cancel"):
        yield "POST", f"/runs/{run_id}/{verb}", {"step": "a", "input": {"a": 1}, "reason": "r"}
    yield "POST", "/runs/bulk-replay", {"status": "failed", "workflow": "w", "runType": "eval"}
    yield "POST", "/approvals/a/decision", {"status": "approved", "decidedBy": "p", "args": {}}
    yield "POST", "/datasets", {"name": "d", "description": "x", "dedupeId": "d"}
    item = {"input": {"a": 1}, "expected": 1, "metadata": {"a": 1}, "dedupeId": "d"}
    yield "POST", "/datasets/d/items", item
    yield "PATCH", "/datasets/d/items/i", {"archived": True}
    yield "POST", "/datasets/d/eval", {"workflow": "order", "app": "shop", "label": "l"}
    endpoint = {"url": "http://127.0.0.1:9/x", "eventKinds": ["run.failed"], "name": "n"}
    yield "POST", "/webhook-endpoints", endpoint
    yield "PATCH", "/webhook-endpoints/w", endpoint
    source = {"name": "s", "app": "shop", "event": "e", "scheme": "github", "secret": "s"}
    yield "POST", "/webhook-sources", source
    yield "PATCH", "/webhook-sources/s", source


def test_no_odd_value_makes_a_push_route_stumble(wire: Wire) -> None:
    a_runner(wire, workflow("order", singleton={"key": "account.id"}))
    seen = set()
    for method, path, body in bodies(wire):
        seen.add(wire.call(method, path, body, headers=HEADERS).status)
        for place in places(body):
            for value in ODD:
                answer = wire.call(method, path, put(body, place, value), headers=HEADERS)
                # Without a provider or a key a server may say that it cannot.
                typed = answer.status < 500 or answer.status in (501, 503)
                assert typed, (path, place, value, answer.content)
    assert {200, 201, 202} & seen


@pytest.mark.parametrize(
    "body",
    [
        {"data": {"total": "<number>"}},
        {"opcodes": [op("Emit", "out", eventName="e", data={"total": "<number>"})]},
        {"opcodes": [ran("a", {"total": "<number>"})]},
        {"opcodes": [op("Sleep", "nap", durationMs="<number>")]},
        {"opcodes": [], "logs": [{"level": "info", "message": "m", "data": "<number>"}]},
    ],
)
def test_an_answer_of_a_runner_with_such_a_number_fails_its_run(wire: Wire, body: Json) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")
    asked = runner.next()
    payload = {"status": 200 if "data" in body else 206, "body": body}
    result = {"type": "invoke.result", "id": asked.id, "payload": payload}
    runner.send_text(spelled(result, "1e400").decode())
    assert "the number 1e400 is too large" in settled(wire, run_id, "failed")["error"]["message"]


def test_a_registration_with_such_a_number_is_closed_with_a_reason(wire: Wire) -> None:
    runner = dial(wire)
    runner.read()
    odd = workflow("order", retry={"maxAttempts": "<number>"})
    payload = {"app": "shop", "protocolVersion": 1, "workflows": [odd]}
    frame = spelled({"type": "runner.register", "payload": payload}, "1e400")
    runner.send_text(frame.decode())
    assert runner.closed_with() == (
        1008,
        "the registration cannot be read: the number 1e400 is too large",
    )
