"""On every route that takes a body, no body, `{}` and `[]` mean the same."""

import re
from collections.abc import Iterator

from perdure.web.routing import Route
from tests.support.http import CONTROL_VERSION, WORKER_VERSION, Answer, Wire

EMPTY = (b"", b"{}", b"[]", b" [ ]\n")


def routes_with_bodies(wire: Wire) -> Iterator[Route]:
    for route in wire.server.app.router.routes:
        if route.method != "GET" and not route.raw_bytes_max:
            yield route


def meaning(answer: Answer) -> tuple[object, ...]:
    """What an answer says, without what differs from call to call."""
    body = answer.body if answer.content else {}
    return answer.status, body.get("reason"), body.get("errors"), body.get("message")


def test_an_empty_body_means_the_same_in_every_form(shared_wire: Wire) -> None:
    wire = shared_wire
    headers = {
        CONTROL_VERSION: "2",
        WORKER_VERSION: "1.20",
        "X-Durablex-Protocol-Version": "1",
        "Content-Type": "application/json",
    }
    differing, seen = {}, set()
    for route in routes_with_bodies(wire):
        path = re.sub(r"\{\w+\}", "w~x-1~1", route.path)
        told = {}
        # The first call may be the one that creates something.
        for content in (b"{}", *EMPTY):
            answer = wire.call(route.method, path, content=content, headers=headers)
            told[content] = meaning(answer)
            assert answer.status < 500, (route.path, content, answer.content)
        seen.add(told[b"{}"][0])
        if len(set(map(str, told.values()))) > 1:
            differing[f"{route.method} {route.path}"] = told
    assert differing == {}
    assert {200, 404, 422} <= seen, "too little got past the door"


def test_a_body_that_is_a_list_of_something_stays_refused(shared_wire: Wire) -> None:
    headers = {CONTROL_VERSION: "2", WORKER_VERSION: "1.20", "Content-Type": "application/json"}
    for path in ("/api/workflows/order-1/cancel", "/api/worker/register"):
        shared_wire.call("POST", path, content=b"[1]", headers=headers).refused(
            422, "validation_failed"
        )
