"""Results of steps that are too large to stay inline: stored, referred to, fetched, removed."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.core import limits
from perdure.core.bounds import Bounds
from tests.support.http import Answer, Json, Wire, a_wire
from tests.support.runner import (
    HandRunner,
    Invoke,
    a_runner,
    op,
    ran,
    rows,
    settled,
    show,
    start,
    step_id,
    workflow,
)
from tests.support.uploads import HOUR
from tests.support.uploads import fetch as fetch_external
from tests.wire.push.test_push_retention import prune

ORDER = workflow("order")
LARGE = "x" * 100_000


def capable(wire: Wire, **members: Any) -> HandRunner:
    """A runner that says that it fetches results."""
    return a_runner(wire, ORDER, offload=True, **members)


def upload(wire: Wire, run_id: str, data: bytes, sha256: str | None = None) -> Answer:
    headers = {
        "Content-Type": "application/octet-stream",
        "X-Durablex-Payload-Sha256": sha256 or hashlib.sha256(data).hexdigest(),
    }
    return wire.call("POST", f"/payloads?run={run_id}", content=data, headers=headers)


def uploaded(wire: Wire, run_id: str, value: Any) -> Json:
    ref: Json = upload(wire, run_id, json.dumps(value).encode()).ok(201)["ref"]
    return ref


def stored(name: str, ref: Json) -> Json:
    """A step whose result was uploaded."""
    return op("StepRun", name, dataRef=ref)


def fetch(wire: Wire, run_id: str, ref: Json) -> Answer:
    return wire.call("GET", f"/runs/{run_id}/payloads/{ref['id']}")


def fetched(wire: Wire, invoke: Invoke, name: str) -> Any:
    memo = invoke.memo(name)
    assert memo is not None
    assert set(memo) == {"ref"}, memo
    answer = fetch(wire, invoke.run_id, memo["ref"])
    assert answer.status == 200, answer
    assert hashlib.sha256(answer.content).hexdigest() == memo["ref"]["sha256"]
    assert len(answer.content) == memo["ref"]["size"]
    return json.loads(answer.content)


def test_a_run_whose_results_come_to_far_more_than_a_message_completes(wire: Wire) -> None:
    runner = capable(wire)
    run_id = start(wire, "order")

    for number in range(8):
        invoke = runner.next()
        assert invoke.context["offload"] == {"thresholdBytes": 65_536, "maxBytes": 10_485_760}
        invoke.found(stored(f"s{number}", uploaded(wire, run_id, [number, "x" * 500_000])))
    last = runner.next()
    for number in range(8):
        assert fetched(wire, last, f"s{number}") == [number, "x" * 500_000]
    last.returned("done")

    run = settled(wire, run_id, "succeeded")
    assert run["stepResultsBytes"] == 8 * 500_007
    assert "limitsNear" not in run


def test_a_large_result_that_comes_inline_is_stored_by_the_engine(wire: Wire) -> None:
    runner = capable(wire)
    run_id = start(wire, "order")
    runner.next().found(ran("large", LARGE), ran("small", "y"))

    invoke = runner.next()

    assert fetched(wire, invoke, "large") == LARGE
    assert invoke.memo("small") == {"data": "y"}
    assert [len(str(row)) for row in wire.stored()["payload"] if LARGE in str(row)]
    invoke.returned()
    settled(wire, run_id, "succeeded")


def test_a_runner_that_cannot_fetch_is_sent_everything_inline(wire: Wire) -> None:
    runner = a_runner(wire, ORDER)
    run_id = start(wire, "order")
    runner.next().found(ran("a", LARGE), ran("b", "ü" * 50_000), ran("c"))

    invoke = runner.next()

    assert "offload" not in invoke.context
    assert [invoke.memo(name) for name in "abc"] == [
        {"data": LARGE},
        {"data": "ü" * 50_000},
        {"data": None},
    ]
    invoke.found(stored("d", uploaded(wire, run_id, LARGE)))
    assert runner.next().memo("d") == {"data": LARGE}


def test_a_memo_that_no_message_can_carry_fails_the_run_with_a_reason(wire: Wire) -> None:
    runner = a_runner(wire, ORDER)
    run_id = start(wire, "order")
    runner.next().found(ran("a", "x" * 600_000))
    runner.next().found(ran("b", "x" * 600_000))

    error = settled(wire, run_id, "failed")["error"]

    assert error["reason"] == "memo_too_large"


def test_many_small_results_come_in_pages(wire: Wire) -> None:
    runner = capable(wire)
    run_id = start(wire, "order")
    count = 600
    for begin in range(0, count, 200):
        runner.next().found(*(ran(f"s{n}", "x" * 3_000) for n in range(begin, begin + 200)))
    invoke = runner.next()

    told, after, pages = dict(invoke.body["steps"]), invoke.context["offload"]["after"], 0
    while after is not None:
        page = wire.call("GET", f"/runs/{run_id}/memo?after={after}").ok()
        assert not told.keys() & page["steps"].keys()
        told |= page["steps"]
        after, pages = page["after"], pages + 1

    assert told == {step_id(f"s{n}"): {"data": "x" * 3_000} for n in range(count)}
    assert len(json.dumps(invoke.body)) < limits.PASS_BYTES_MAX
    assert pages == 1
    invoke.returned()
    settled(wire, run_id, "succeeded")
    wire.call("GET", f"/runs/{run_id}/memo?after=1").refused(409, "run_not_active")


def test_medium_results_are_stored_once_a_run_has_many(wire: Wire) -> None:
    runner = capable(wire)
    start(wire, "order")
    runner.next().found(*(ran(f"s{n}", "x" * 50_000) for n in range(15)))

    invoke = runner.next()

    kinds = ["ref" if "ref" in memo else "data" for memo in invoke.body["steps"].values()]
    assert kinds == ["data"] * 11 + ["ref"] * 4
    assert "after" not in invoke.context["offload"]


def test_an_upload_is_checked(wire: Wire) -> None:
    runner = capable(wire)
    run_id = start(wire, "order")
    upload(wire, run_id, b'"a"', "0" * 64).refused(400, "external_payload_integrity_mismatch")
    upload(wire, run_id, b'"a"', "A" * 64).refused(400, "validation_failed")
    upload(wire, run_id, b"").refused(400, "validation_failed")
    upload(wire, run_id, b'{"a":').refused(400, "malformed_json")
    upload(wire, run_id, b'"\xff"').refused(400, "malformed_json")
    upload(wire, run_id, b"[" * 10_000).refused(400, "validation_failed")
    upload(wire, run_id, b'"%b"' % (b"x" * 10_485_760)).refused(413, "payload_too_large")
    upload(wire, "nope", b'"a"').refused(404, "run_not_found")
    upload(wire, "", b'"a"').refused(404, "run_not_found")
    headers = {"Content-Type": "application/json"}
    answer = wire.call("POST", f"/payloads?run={run_id}", content=b'"a"', headers=headers)
    answer.refused(415, "unsupported_media_type")
    assert wire.stored()["payload"] == []
    assert uploaded(wire, run_id, "ü") == uploaded(wire, run_id, "ü")
    runner.next().returned()
    settled(wire, run_id, "succeeded")
    upload(wire, run_id, b'"a"').refused(409, "run_not_active")


@pytest.mark.parametrize(
    "ref",
    [
        {"sha256": "0" * 64, "size": 5},
        {"sha256": hashlib.sha256(b'"a"').hexdigest(), "size": 4},
    ],
)
def test_a_result_that_was_not_uploaded_fails_the_run_with_a_reason(wire: Wire, ref: Json) -> None:
    runner = capable(wire)
    run_id = start(wire, "order")
    uploaded(wire, run_id, "a")

    runner.next().found(stored("s", ref))

    error = settled(wire, run_id, "failed")["error"]
    assert error["reason"] == "step_result_missing"
    assert wire.stored()["payload"] != [], "the upload expires by itself"


@pytest.mark.parametrize("ref", [{"sha256": "x", "size": 5}, {"sha256": "0" * 64, "size": 0}, 5])
def test_a_reference_that_makes_no_sense_fails_the_run(wire: Wire, ref: Any) -> None:
    runner = capable(wire)
    run_id = start(wire, "order")
    runner.next().found(stored("s", ref))
    settled(wire, run_id, "failed")


def test_an_upload_that_is_never_reported_expires(wire: Wire) -> None:
    runner = capable(wire)
    run_id = start(wire, "order")
    ref = uploaded(wire, run_id, LARGE)
    invoke = runner.next()
    runner.vanish()
    again = capable(wire)
    wire.advance(seconds=HOUR + 1)
    assert wire.stored()["payload"] == []
    fetch(wire, run_id, ref).refused(410, "external_payload_expired")
    again.next().found(stored("s", ref))
    assert settled(wire, run_id, "failed")["error"]["reason"] == "step_result_missing"
    assert invoke.run_id == run_id


def test_no_run_can_name_or_fetch_a_result_of_another_one(wire: Wire) -> None:
    runner = capable(wire)
    victim, thief = start(wire, "order"), start(wire, "order")
    invokes = {invoke.run_id: invoke for invoke in (runner.next(), runner.next())}
    ref = uploaded(wire, victim, LARGE)
    invokes[victim].found(stored("s", ref))
    assert fetched(wire, runner.next(), "s") == LARGE

    fetch(wire, thief, ref).refused(404, "external_payload_not_found")
    fetch(wire, "nope", ref).refused(404, "run_not_found")
    fetch(wire, victim, {"id": "ep_0"}).refused(404, "external_payload_not_found")
    fetch_external(wire, {"reference_id": ref["id"]}).refused(404, "external_payload_not_found")
    body = {"workflow_type": "Order", "workflow_id": "o", "input": _as_external(ref)}
    assert wire.control("POST", "/workflows", body).status == 422
    # Data that looks like what history has of a stored result is data.
    invokes[thief].found(stored("s", ref), ran("t", _as_external(ref)))
    assert settled(wire, thief, "failed")["error"]["reason"] == "step_result_missing"
    fetch(wire, thief, ref).refused(404, "external_payload_not_found")


def _as_external(ref: Json) -> Json:
    reference = {
        "schema": "durable-workflow.v2.runtime-external-payload-reference.v1",
        "reference_id": ref["id"],
        "codec": "json",
        "size_bytes": ref["size"],
        "sha256": ref["sha256"],
    }
    return {"codec": "json", "external_payload": reference}


def test_steps_are_shown_with_what_is_stored_as_far_as_it_goes(wire: Wire) -> None:
    runner = capable(wire)
    run_id = start(wire, "order")
    for number in range(3):
        runner.next().found(stored(f"s{number}", uploaded(wire, run_id, "x" * 500_000)))
    runner.next().found(ran("t", 5))
    last = runner.next()

    shown = rows(wire, f"/runs/{run_id}/steps")

    assert [len(row.get("output", "")) for row in shown[:3]] == [500_000, 500_000, 0]
    for number in range(3):
        ref = shown[number]["outputRef"]
        assert {"ref": ref} == last.memo(f"s{number}")
    assert shown[3]["output"] == 5
    assert "outputRef" not in shown[3]


def test_what_children_and_events_bring_is_stored_too(wire: Wire) -> None:
    runner = a_runner(wire, ORDER, workflow("kid"), offload=True)
    run_id = start(wire, "order")
    runner.next().found(
        op("RunWorkflow", "kid", childName="kid"),
        op("WaitForEvent", "news", eventName="news"),
    )
    runner.next().returned(LARGE)
    invoke = runner.next()
    assert fetched(wire, invoke, "kid") == LARGE
    invoke.found()
    wire.call("POST", "/events", {"name": "news", "data": LARGE}).ok(202)
    invoke = runner.next()
    memo = invoke.memo("news")
    assert memo is not None
    assert "ref" in memo
    assert LARGE in fetch(wire, run_id, memo["ref"]).content.decode()


def test_a_run_that_goes_on_from_a_step_takes_stored_results_over(wire: Wire) -> None:
    runner = capable(wire)
    first = start(wire, "order")
    runner.next().found(stored("a", uploaded(wire, first, LARGE)))
    runner.next().found(ran("b"))
    runner.next().answer(400, {"error": "no"})
    settled(wire, first, "failed")
    second = wire.call("POST", f"/runs/{first}/retry-from-step", {"step": "b"}).body["id"]
    invoke = runner.next()
    assert invoke.run_id == second
    assert fetched(wire, invoke, "a") == LARGE
    invoke.found(stored("b", uploaded(wire, second, LARGE + "b")))
    runner.next().answer(400, {"error": "no"})
    wire.advance(seconds=86_400)
    third = wire.call("POST", f"/runs/{second}/fork", {"step": "c"})
    assert third.status == 400
    third = wire.call("POST", f"/runs/{second}/fork", {"step": "b"})
    invoke = runner.next()
    assert fetched(wire, invoke, "a") == LARGE
    # The runs before it go; what it took over stays as long as it does.
    wire.advance(seconds=8 * 86_400)
    prune(wire)
    wire.call("GET", f"/runs/{first}").refused(404, "run_not_found")
    wire.advance(seconds=2 * HOUR)
    assert fetched(wire, invoke, "a") == LARGE


def test_stored_results_go_with_their_run(wire: Wire) -> None:
    runner = capable(wire)
    run_id = start(wire, "order")
    ref = uploaded(wire, run_id, LARGE)
    runner.next().found(stored("a", ref), ran("b", LARGE + "b"))
    runner.next().returned()
    settled(wire, run_id, "succeeded")
    assert len(wire.stored()["payload"]) == 2
    wire.advance(seconds=2 * HOUR)
    assert fetch(wire, run_id, ref).status == 200
    wire.advance(seconds=8 * 86_400)
    assert prune(wire) == 1
    wire.advance(seconds=2 * HOUR)
    assert wire.stored()["payload"] == []
    wire.advance(seconds=limits.GONE_PAYLOAD_REMEMBERED / limits.SECOND + 1)
    assert [row for row in wire.stored()["record"] if "payload" in str(row)] == []


def test_results_outlive_the_server(wire: Wire) -> None:
    runner = capable(wire)
    run_id = start(wire, "order")
    runner.next().found(stored("a", uploaded(wire, run_id, LARGE)), ran("b", LARGE + "b"))
    runner.next()
    runner.vanish()
    wire.restart()
    runner = capable(wire)
    wire.advance(seconds=31)

    invoke = runner.next()

    assert fetched(wire, invoke, "a") == LARGE
    assert fetched(wire, invoke, "b") == LARGE + "b"


class TestABound:
    @pytest.fixture
    def wire(self, wire_settings: dict[str, Any], tmp_path: Path) -> Iterator[Wire]:
        bounds = Bounds(step_results_bytes_max=250_000)
        with a_wire(tmp_path, bounds=bounds, **wire_settings) as wire:
            yield wire

    def test_being_near_is_told_and_passing_it_fails_the_run(self, wire: Wire) -> None:
        runner = capable(wire)
        run_id = start(wire, "order")
        runner.next().found(ran("a", "x" * 150_000))
        invoke = runner.next()
        assert "limitsNear" not in show(wire, run_id)
        invoke.found(stored("b", uploaded(wire, run_id, "x" * 60_000)))
        invoke = runner.next()
        near = {
            "limitKind": "step_results_bytes",
            "currentValue": 210_004,
            "configuredLimit": 250_000,
        }
        assert show(wire, run_id)["limitsNear"] == [near]
        (line,) = rows(wire, f"/runs/{run_id}/logs")
        assert (line["level"], line["scope"]) == ("warn", "b")
        assert "of 250000 bytes" in line["message"]

        invoke.found(ran("c", "x" * 60_000))

        run = settled(wire, run_id, "failed")
        assert run["error"]["reason"] == "step_results_too_large"
        assert "DW_MAX_STEP_RESULTS_BYTES" in run["error"]["message"]
        assert len(rows(wire, f"/runs/{run_id}/logs")) == 1

    def test_what_passes_it_in_one_pass_fails_the_run_at_once(self, wire: Wire) -> None:
        runner = capable(wire)
        run_id = start(wire, "order")
        runner.next().found(*(ran(f"s{n}", "x" * 60_000) for n in range(6)))
        assert settled(wire, run_id, "failed")["error"]["reason"] == "step_results_too_large"
        assert runner.has_nothing()
