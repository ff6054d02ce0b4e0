"""What model calls of runs use up, what they may, and calls that the engine makes itself."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.features.model_calls.loops import ModelCaller
from tests.support.http import Json, Wire, a_wire
from tests.support.models import ModelServer, completion
from tests.support.runner import (
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
from tests.support.tables import empty

USED = {"model": "m-1", "tokensIn": 100, "tokensOut": 20, "cost": 0.25, "latencyMs": 40}
ASKED = [{"role": "user", "content": "why?"}]


def spend(wire: Wire, query: str = "") -> Json:
    return wire.call("GET", f"/ai/spend{query}").ok()


def test_what_steps_use_up_is_added_up(wire: Wire) -> None:
    runner = a_runner(wire, workflow("write"), workflow("read"))
    run_id = start(wire, "write")
    invoke = runner.next()
    assert "spent" not in invoke.context
    journal = {"kind": "wrap", "cacheReadTokens": 5}
    invoke.found(
        ran("a", 1, usage=USED, ai=journal),
        ran("b", 2, usage={"model": "m-2", "tokensOut": 5, "latencyMs": 20}, ai={"kind": "wrap"}),
        ran("c", 3),
    )
    invoke = runner.next()
    assert invoke.context["spent"] == {"cost": 0.25, "tokens": 125}
    assert "cap" not in invoke.context
    invoke.returned()
    other = start(wire, "read")
    runner.next().found(ran("a", 1, usage={"tokensIn": 1}, ai={"cacheReadTokens": 0}))
    runner.next().returned()

    run = settled(wire, run_id, "succeeded")
    assert (run["aiTokens"], run["aiCost"]) == (125, 0.25)
    run = settled(wire, other, "succeeded")
    assert run["aiTokens"] == 1
    assert "aiCost" not in run
    assert steps(wire, run_id)[0]["ai"] == journal
    told = spend(wire)
    assert (told["tokens"], told["calls"], told["cost"]) == (126, 3, 0.25)
    assert (told["cacheHits"], told["cacheEligible"], told["avgLatencyMs"]) == (1, 2, 30)
    assert told["bucketSeconds"] == 3_600
    assert (len(told["hourly"]), sum(point["tokens"] for point in told["hourly"])) == (25, 126)
    assert told["byModel"] == [
        {"model": "m-1", "tokens": 120, "calls": 1, "cost": 0.25},
        {"model": "m-2", "tokens": 5, "calls": 1},
        {"model": "unknown", "tokens": 1, "calls": 1},
    ]
    assert told["byWorkflow"] == [
        {"workflow": "write", "app": "shop", "tokens": 125, "runs": 1, "cost": 0.25},
        {"workflow": "read", "app": "shop", "tokens": 1, "runs": 1},
    ]
    assert spend(wire, "?workflow=read")["tokens"] == 1
    assert spend(wire, "?app=nobody")["byWorkflow"] == []
    assert spend(wire, "?bucket=60&since=2000-01-01T00:00:00Z")["tokens"] == 126
    wire.advance(seconds=30 * 3_600)
    later = spend(wire, "?bucket=7200")
    assert (later["calls"], later["bucketSeconds"], "cost" in later) == (0, 7_200, False)


@pytest.mark.parametrize("query", ["bucket=0", "bucket=x", "since=yesterday", "bucket=99999999999"])
def test_a_question_about_spending_that_makes_no_sense_is_refused(
    shared_wire: Wire, query: str
) -> None:
    shared_wire.call("GET", f"/ai/spend?{query}").refused(400, "validation_failed")


def test_an_answer_that_is_told_twice_is_charged_once(wire: Wire) -> None:
    runner = a_runner(wire, workflow("write"))
    run_id = start(wire, "write")
    invoke = runner.next()
    invoke.found(ran("a", 1, usage=USED))
    runner.next().found(ran("a", 1, usage=USED), ran("b", 1))
    invoke.found(ran("a", 1, usage=USED))
    runner.next().returned()

    assert settled(wire, run_id, "succeeded")["aiTokens"] == 120
    assert spend(wire)["calls"] == 1


@pytest.mark.parametrize(
    "usage",
    [
        {"tokensIn": -1},
        {"tokensIn": "7"},
        {"cost": -0.5},
        {"cost": 1e300},
        {"model": 7},
        [1],
        "much",
    ],
)
def test_a_usage_that_makes_no_sense_is_told_and_not_counted(
    shared_wire: Wire, usage: object
) -> None:
    runner = a_runner(shared_wire, workflow("write"))
    run_id = start(shared_wire, "write")
    runner.next().found(ran("a", 1, usage=usage))
    runner.next().returned()

    run = settled(shared_wire, run_id, "succeeded")
    runner.close()
    assert "aiTokens" not in run
    (line,) = rows(shared_wire, f"/runs/{run_id}/logs")
    assert (line["level"], line["scope"]) == ("warn", "a")


def test_a_run_is_told_its_cap(wire: Wire) -> None:
    capped = workflow("write", cap={"maxCost": 0.3, "maxTokens": 500})
    runner = a_runner(wire, capped, workflow("parent"))
    run_id = start(wire, "write")
    invoke = runner.next()
    assert invoke.context["cap"] == {"maxCost": 0.3, "maxTokens": 500}
    assert invoke.context["spent"] == {"cost": 0, "tokens": 0}
    invoke.found(ran("a", 1, usage=USED))
    assert runner.next().context["spent"] == {"cost": 0.25, "tokens": 120}
    wire.call("POST", f"/runs/{run_id}/cancel").ok()

    again = wire.call("POST", f"/runs/{run_id}/replay").ok()
    invoke = runner.next()
    assert invoke.run_id == again["id"]
    assert invoke.context["cap"] == {"maxCost": 0.3, "maxTokens": 500}
    assert invoke.context["spent"]["tokens"] == 0
    start(wire, "parent")
    runner.next().found(op("RunWorkflow", "kid", childName="write"))
    assert runner.next().context["cap"] == {"maxCost": 0.3, "maxTokens": 500}


@pytest.mark.parametrize(
    ("cap", "told"),
    [({"maxTokens": 0}, "maxTokens"), ({"maxCost": -1}, "maxCost"), ({"maxCost": "1"}, "maxCost")],
)
def test_a_cap_that_makes_no_sense_is_refused(shared_wire: Wire, cap: Json, told: str) -> None:
    body = {"app": "x", "url": "http://127.0.0.1:1/", "workflows": [{"name": "w", "cap": cap}]}
    refused = shared_wire.call("POST", "/register", body).refused(400, "validation_failed")
    assert f"workflows[0].cap.{told}" in refused["error"]


# Calls of the engine ------------------------------------------------------------------------------


def test_without_a_provider_the_code_learns_that_there_is_none(wire: Wire) -> None:
    runner = a_runner(wire, workflow("write"))
    start(wire, "write")
    runner.next().found(op("Infer", "ask", data={"messages": ASKED}))

    assert runner.next().memo("ask") == {"error": {"message": "no AI provider configured"}}


@pytest.mark.parametrize(
    "data",
    [None, {}, {"messages": []}, {"messages": ["hi"]}, {"messages": ASKED, "maxTokens": 0}],
)
def test_a_question_that_makes_no_sense_fails_its_run(shared_wire: Wire, data: object) -> None:
    runner = a_runner(shared_wire, workflow("write"))
    run_id = start(shared_wire, "write")
    runner.next().found(op("Infer", "ask", data=data))

    run = settled(shared_wire, run_id, "failed")
    runner.close()
    assert "Infer" in run["error"]["message"]


@pytest.fixture
def asking(
    wire_store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[Wire, ModelServer]]:
    """A server with a provider beside it, which has a loop of its own."""
    settings: dict[str, Any] = {"ai_key": "sesame", "ai_model": "usual"}
    if wire_store == "postgres":
        settings["store"] = request.getfixturevalue("common_database")
        empty(settings["store"])
    models = ModelServer()
    with a_wire(tmp_path, **settings, ai_url="http://127.0.0.1:1/") as wire:

        async def begin() -> "asyncio.Task[None]":
            await models.open()
            provider = wire.find_loop(ModelCaller)._provider
            assert provider is not None
            provider._url = models.url  # type: ignore[attr-defined]
            return asyncio.create_task(wire.find_loop(ModelCaller).run())

        running = wire.run(begin())
        yield wire, models
        running.cancel()
        models.close()


def test_the_engine_asks_a_model_and_counts_what_it_used(asking: tuple[Wire, ModelServer]) -> None:
    wire, models = asking
    runner = a_runner(wire, workflow("write"))
    run_id = start(wire, "write")
    models.answers = [(200, completion("because", model="m-9"))]
    question = {"messages": ASKED, "model": "m", "maxTokens": 9}
    runner.next().found(op("Infer", "ask", data=question), op("Sleep", "nap", sleepMs=60_000))

    invoke = runner.next()
    assert invoke.memo("ask") == {"data": {"text": "because", "model": "m-9"}}
    assert invoke.context["spent"] == {"cost": 0, "tokens": 10}
    assert models.asked == [{"messages": ASKED, "model": "m", "max_tokens": 9}]
    assert models.keys == ["bearer sesame"]
    (step, _) = steps(wire, run_id)
    assert (step["status"], step["ai"]["kind"], step["ai"]["model"]) == (
        "succeeded",
        "infer",
        "m-9",
    )
    assert spend(wire)["byModel"] == [{"model": "m-9", "tokens": 10, "calls": 1}]
    invoke.returned()
    assert settled(wire, run_id, "succeeded")["aiTokens"] == 10


def test_a_call_is_tried_again_where_that_may_help(asking: tuple[Wire, ModelServer]) -> None:
    wire, models = asking
    runner = a_runner(wire, workflow("write"))
    run_id = start(wire, "write")
    models.answers = [(429, {"error": "busy"}), (200, completion("at last"))]
    runner.next().found(op("Infer", "ask", data={"messages": ASKED}))
    wire.until(lambda: len(models.asked) == 1 and wire.find_loop(ModelCaller)._under_way == 0)
    wire.advance(seconds=1)

    invoke = runner.next()
    assert invoke.memo("ask") == {"data": {"text": "at last", "model": "m-1"}}
    assert models.asked[1] == {"messages": ASKED, "model": "usual"}
    assert steps(wire, run_id)[0]["attempt"] == 2
    models.answers = [(400, {"error": "no such model"})]
    invoke.found(op("Infer", "more", data={"messages": ASKED}))
    told = runner.next().memo("more")
    assert told is not None
    assert "answered 400" in told["error"]["message"]
    assert show(wire, run_id)["status"] == "running"


def test_a_model_explains_a_run_without_its_payloads(asking: tuple[Wire, ModelServer]) -> None:
    wire, models = asking
    runner = a_runner(wire, workflow("write"))
    run_id = start(wire, "write", {"secret": "input"})
    runner.next().found(ran("one", "secret output"), broke("two", "no ink", retriable=False))
    settled(wire, run_id, "failed")
    models.answers = [(200, completion("There was no ink.")), (400, {"error": "no"})]

    told = wire.call("POST", f"/runs/{run_id}/explain")
    failed = wire.call("POST", f"/runs/{run_id}/explain")

    frames = [json.loads(line[6:]) for line in told.content.split(b"\n") if line[:5] == b"data:"]
    assert frames == [{"type": "token", "text": "There was no ink."}, {"type": "done"}]
    assert b'"type":"error"' in failed.content
    sent = json.dumps(models.asked[0])
    assert "no ink" in sent
    assert "secret" not in sent
    assert show(wire, run_id).get("aiTokens") is None


@pytest.mark.parametrize("answer", [{}, {"choices": []}, {"choices": [{"message": "hi"}]}])
def test_an_answer_that_makes_no_sense_is_an_error(
    asking: tuple[Wire, ModelServer], answer: Json
) -> None:
    wire, models = asking
    runner = a_runner(wire, workflow("write"))
    start(wire, "write")
    models.answers = [(200, answer)]
    runner.next().found(op("Infer", "ask", data={"messages": ASKED}))

    told = runner.next().memo("ask")
    assert told is not None
    assert "cannot be read" in told["error"]["message"]


def test_a_call_that_nobody_concluded_is_made_again(asking: tuple[Wire, ModelServer]) -> None:
    wire, models = asking
    runner = a_runner(wire, workflow("write"))
    start(wire, "write")
    model_caller = wire.find_loop(ModelCaller)
    kept = model_caller._begun
    model_caller._begun = asyncio.Queue()  # whoever had this try is gone
    runner.next().found(op("Infer", "ask", data={"messages": ASKED}))
    wire.until(lambda: model_caller._begun.qsize() == 1)
    model_caller._begun = kept
    wire.advance(seconds=151)

    assert runner.next().memo("ask") == {"data": {"text": "hi", "model": "m-1"}}
    assert len(models.asked) == 1


def test_an_answer_that_comes_late_is_taken_before_another_is_asked_for(
    asking: tuple[Wire, ModelServer],
) -> None:
    wire, models = asking
    runner = a_runner(wire, workflow("write"))
    run_id = start(wire, "write")
    model_caller = wire.find_loop(ModelCaller)
    kept, late = model_caller._begun, asyncio.Queue[Any]()
    model_caller._begun = late
    runner.next().found(op("Infer", "ask", data={"messages": ASKED}))
    wire.until(lambda: late.qsize() == 1)
    wire.advance(seconds=151)
    wire.until(lambda: late.qsize() == 2)
    first, second = late.get_nowait(), late.get_nowait()

    model_caller._begun = kept
    kept.put_nowait(first)
    assert runner.next().memo("ask") == {"data": {"text": "hi", "model": "m-1"}}
    kept.put_nowait(second)
    wire.until(lambda: len(models.asked) == 2 and model_caller._under_way == 0)
    assert show(wire, run_id)["aiTokens"] == 10


def test_no_model_is_asked_for_a_run_that_has_reached_its_cap_or_is_over(
    asking: tuple[Wire, ModelServer],
) -> None:
    wire, models = asking
    runner = a_runner(wire, workflow("write", cap={"maxTokens": 100}))
    run_id = start(wire, "write")
    runner.next().found(ran("a", 1, usage=USED))
    runner.next().found(op("Infer", "ask", data={"messages": ASKED}))

    told = runner.next().memo("ask")
    assert told is not None
    assert "120 tokens of 100" in told["error"]["message"]
    wire.call("POST", f"/runs/{run_id}/cancel").ok()
    assert models.asked == []
