"""Every interactive route, with everything that can be wrong about a call.

For each route there is a call that would succeed. Each fault is put into it by itself; the answer
must have the documented status and reason, and every row of every table must be as it was. In the
end the call is made without a fault, and succeeds: so nothing else was wrong with it.

A new route needs an entry in `CALLS`, or in `ELSEWHERE` if another module plays its faults.
"""

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from perdure.core import limits
from perdure.core.limits import SECOND
from perdure.web.message import request_for
from tests.support.calls import (
    ATTEMPT_OF,
    CALLS,
    FLOW,
    INVALID,
    MALFORMED,
    QUERY,
    TASK,
    VERDICT,
    Call,
    Refusal,
    worker_body,
)
from tests.support.http import (
    CONTROL_VERSION,
    WORKER_VERSION,
    Answer,
    Json,
    Wire,
    wait_for_condition,
)

ELSEWHERE = {
    f"POST {FLOW}/runs/{{run_id}}/streams/{{stream_name}}/items": "test_streams",
    f"POST {FLOW}/runs/{{run_id}}/streams/{{stream_name}}/close": "test_streams",
    f"POST {TASK}/deliver-cancellation": "test_cancellation",
    f"POST {ATTEMPT_OF}/acknowledge-cancellation": "test_cancellation",
    **{
        f"POST {TASK}/local-activities/{verb}": "test_prepared_local_activities"
        for verb in (
            "checkpoint",
            "checkpoint-group",
            "prepare",
            "recover",
            "{attempt_id}/control",
            "{attempt_id}/heartbeat",
            "{attempt_id}/outcome",
            "{attempt_id}/acknowledge-cancellation",
        )
    },
}
"""Routes whose faults have a module of tests of their own, and which."""

WITH_ENVELOPES = [
    route
    for route in CALLS
    if route.endswith(
        ("/complete", "/{name}", "/messages", "/api/workflows", "/api/activities", "/execute")
    )
]
WITH_LEASES = [
    route
    for route in CALLS
    if route.startswith((f"POST {TASK}", f"POST {ATTEMPT_OF}", f"POST {VERDICT}", f"POST {QUERY}"))
    and not route.endswith(
        ("activity-tasks/{task_id}/status", "activity-tasks/{task_id}/heartbeat")
    )
]
OF_A_RUN = [
    route
    for route in CALLS
    if (route.startswith(f"POST {FLOW}") and not route.endswith("/redrive"))
    or (route in WITH_LEASES and not route.startswith(f"POST {QUERY}"))
]
"""Queries to a closed run may still be answered, and a worker is told whether it may go on."""

every_call = pytest.mark.parametrize("route", CALLS)


@pytest.fixture
def stage(wire: Wire) -> Wire:
    """Two workers that told what their code takes, and a run that waits."""
    wire.server.namespaces.known.add("abroad")
    for worker_id in ("w1", "w2"):
        wire.worker("/register", worker_body(worker_id)).ok(201)
    wire.worker("/register", {**worker_body("built"), "build_id": "b1"}).ok(201)
    wire.run_to(wait_for_condition())
    return wire


def refused(answer: Answer, refusal: Refusal, what: object) -> Json:
    assert (answer.status, answer.reason) == refusal, (what, answer.status, answer.content)
    return answer.refused(*refusal)


def tells_what_the_server_can(answer: Answer) -> bool:
    """As every answer to a worker does, whether good or bad."""
    version = answer.headers.get(WORKER_VERSION.lower()), answer.body.get("protocol_version")
    return version == ("1.20", "1.20") and "server_capabilities" in answer.body


def is_at(wire: Wire, call: Call, route: str) -> bool:
    """Whether a call goes to the route that it stands for."""
    request = request_for(call.method, f"/api{call.path}".encode(), {})
    found = wire.server.app.router.find(request)
    return f"{found.method} {found.path}" == route


def put(body: Json, place: str, value: Any) -> Json:
    """The body with something else at a dotted place."""
    changed: Any = copy.deepcopy(body)
    *steps, last = place.split(".")
    at = changed
    for step in steps:
        at = at[int(step)] if step.isdigit() else at[step]
    at[last] = value
    return dict(changed)


# Faults -------------------------------------------------------------------------------------------


@every_call
def test_what_is_wrong_is_told_and_changes_nothing(stage: Wire, route: str) -> None:
    call = CALLS[route](stage)
    assert is_at(stage, call, route)
    assert bool(call.envelopes) is (route in WITH_ENVELOPES)
    assert (call.ended is not None) is (route in OF_A_RUN)
    assert (call.lost is not None) is (route in WITH_LEASES)
    with stage.nothing_changes():
        for what, answer, refusal in faults(stage, call):
            refused(answer, refusal, what)
            assert tells_what_the_server_can(answer) is ("/api/worker/" in route), what
    finish(stage, call)


def faults(wire: Wire, call: Call) -> Iterator[tuple[object, Answer, Refusal]]:
    unknown: Refusal = (404, "namespace_not_found")
    yield "no such namespace", call.send(wire, **{"X-Namespace": "nowhere"}), unknown
    if call.abroad is not None:
        yield "another namespace", call.send(wire, **{"X-Namespace": "abroad"}), call.abroad
    for path, refusal in call.elsewhere.items():
        yield path, replace(call, path=path).send(wire), refusal
    if call.body is None:
        return
    headers = {
        CONTROL_VERSION: "2",
        WORKER_VERSION: "1.20",
        "Content-Type": "application/json",
    }
    for content, refusal in (
        (b"{", (400, "malformed_json")),
        (b'{"a": "\xff"}', (400, "malformed_json")),
        (b"[1]", INVALID),
        (b'"text"', INVALID),
        (b"7", INVALID),
        (b'{"padding": "%s"}' % (b"x" * limits.BODY_BYTES_MAX), (413, "payload_too_large")),
    ):
        answer = wire.call(call.method, f"/api{call.path}", content=content, headers=headers)
        yield content[:20], answer, refusal
    media = {**headers, "Content-Type": "text/plain"}
    content = json.dumps(call.body).encode()
    answer = wire.call(call.method, f"/api{call.path}", content=content, headers=media)
    yield "text", answer, (415, "unsupported_media_type")
    for member in call.required:
        less = {key: value for key, value in call.body.items() if key != member}
        yield f"no {member}", replace(call, body=less).send(wire), INVALID
        yield f"null {member}", replace(call, body={**call.body, member: None}).send(wire), INVALID
    for members, refusal in call.changed:
        yield members, replace(call, body={**call.body, **members}).send(wire), refusal


@pytest.mark.parametrize("route", WITH_ENVELOPES)
def test_an_envelope_that_is_none_is_refused_by_its_place(stage: Wire, route: str) -> None:
    call = CALLS[route](stage)
    assert call.body is not None
    with stage.nothing_changes():
        for place in call.envelopes:
            for what, (envelope, member) in MALFORMED.items():
                changed = replace(call, body=put(call.body, place, envelope))
                body = refused(changed.send(stage), INVALID, (place, what))
                assert list(body["errors"]) == [place + member], (what, body["errors"])
    finish(stage, call)


@pytest.mark.parametrize("route", OF_A_RUN)
def test_a_run_that_is_over_takes_nothing(stage: Wire, route: str) -> None:
    call = CALLS[route](stage)
    assert call.ended is not None
    stage.control("POST", "/workflows/order-1/terminate", {}).ok()
    with stage.nothing_changes():
        refused(call.send(stage), call.ended, "terminated")


@pytest.mark.parametrize("route", WITH_LEASES)
def test_a_lease_that_is_over_counts_for_nothing(stage: Wire, route: str) -> None:
    call = CALLS[route](stage)
    assert call.lost is not None
    stage.jump(seconds=(limits.QUERY_TIMEOUT_MAX + limits.WORKFLOW_LEASE_TIMEOUT) / SECOND)
    if call.late is not None:
        with stage.nothing_changes():
            refused(call.send(stage), call.late, "late")
    stage.advance(seconds=0)
    with stage.nothing_changes():
        refused(call.send(stage), call.lost, "lost")


def finish(wire: Wire, call: Call) -> None:
    """The call itself has no fault."""
    if "/query/" in call.path:
        headers = {CONTROL_VERSION: "2"}
        asked = wire.call_later("POST", f"/api{call.path}", call.body, headers=headers)
        task = wire.take("query")
        lease = {key: task[key] for key in ("lease_owner", "query_task_attempt")}
        wire.worker(f"/query-tasks/{task['query_task_id']}/complete", {**lease, "result": 1}).ok()
        answer = asked.answer()
    else:
        answer = call.send(wire)
    assert answer.status in call.answers, (answer.status, answer.content)
    assert tells_what_the_server_can(answer) is call.path.startswith("/worker/")


def test_every_route_that_changes_something_is_here(shared_wire: Wire) -> None:
    """Who adds one finds out here. Uploads have tests of their own."""
    routes = shared_wire.server.app.router.routes
    known = {f"{route.method} {route.path}" for route in routes}
    changing = {
        f"{route.method} {route.path}"
        for route in routes
        if route.method != "GET" and route.path.startswith("/api/") and not route.raw_bytes_max
    }
    assert changing - set(CALLS) - set(ELSEWHERE) == set()
    assert set(CALLS) | set(ELSEWHERE) <= known
