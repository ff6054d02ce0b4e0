"""Which worker a query goes to, and what is refused because none would take it."""

from pathlib import Path
from typing import Any

import pytest

from perdure.core.payload import Frame
from tests.support.http import (
    Json,
    Wire,
    a_wire,
    avro,
    complete_workflow,
    unavro,
)
from tests.wire.queries.asking import CONTRACTS, QUERIES, ask, park

# Who may answer -----------------------------------------------------------------------------------


def test_a_query_that_nobody_can_answer_is_refused_at_once(tmp_path: Path) -> None:
    with a_wire(tmp_path) as wire:
        wire.start()
        ask(wire).answer().refused(409, "query_worker_unavailable")
        wire.register("silent")
        wire.register("elsewhere", task_queue="other", capabilities=QUERIES)
        wire.register("ignorant", supported_workflow_types=["Child"], capabilities=QUERIES)
        body = ask(wire).answer().refused(409, "query_worker_unavailable")
        assert body["result"] is None

        wire.register(capabilities=QUERIES)
        assert ask(wire).is_waiting


def test_a_worker_that_polls_for_queries_need_not_say_so(tmp_path: Path) -> None:
    with a_wire(tmp_path) as wire:
        wire.register()
        wire.start()
        poll = park(wire)
        ask(wire)
        assert poll.answer().ok()["task"]["query_name"] == "total"


def test_a_worker_that_went_silent_is_not_waited_for_unless_it_polls(wire: Wire) -> None:
    wire.advance(seconds=61)
    ask(wire).answer().refused(409, "query_worker_unavailable")

    poll = park(wire)
    ask(wire)
    assert poll.answer().ok()["task"]["query_name"] == "total"


def test_a_query_goes_to_the_build_of_its_run(wire: Wire) -> None:
    wire.start("pinned", build_id="blue")
    refused = ask(wire, workflow_id="pinned").answer()
    refused.refused(409, "query_worker_incompatible")

    wire.register("green", build_id="green", capabilities=QUERIES)
    wire.register("blue", build_id="blue", capabilities=QUERIES)
    green, blue = park(wire, "green"), park(wire, "blue")
    ask(wire, workflow_id="pinned")
    assert blue.answer().ok()["task"]["workflow_id"] == "pinned"
    ask(wire)
    assert green.answer().ok()["task"]["workflow_id"] == "order-1"


def test_a_query_goes_to_a_worker_that_knows_its_type(wire: Wire) -> None:
    wire.register("other", supported_workflow_types=["Child"], capabilities=QUERIES)
    other, able = park(wire, "other"), park(wire)

    ask(wire)

    assert able.answer().ok()["task"]["lease_owner"] == "w1"
    assert other.is_waiting


def test_describe_tells_whether_a_query_would_find_a_worker(wire: Wire) -> None:
    wire.start("done")
    wire.complete(wire.take(), complete_workflow())
    wire.start("over")
    wire.control("POST", "/workflows/over/cancel", {}).ok()
    able = {
        name: wire.describe(name)["actions"]["can_query"] for name in ("order-1", "done", "over")
    }
    assert able == {"order-1": True, "done": True, "over": False}

    wire.worker("/registrations/w1", None, method="DELETE").ok()
    assert wire.describe()["actions"]["can_query"] is False


# What workers told beforehand ---------------------------------------------------------------------


def test_a_query_that_no_worker_knows_is_refused_without_one(wire: Wire) -> None:
    wire.register(capabilities=QUERIES, workflow_command_contracts=CONTRACTS)
    ask(wire, "colour").answer().refused(404, "rejected_unknown_query")

    wire.register("untold", capabilities=QUERIES)
    assert ask(wire, "colour").is_waiting, "a worker that told nothing may know it"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (avro([]), ["title"]),
        (avro(["a", 1, 2]), ["arguments"]),
        (avro([], Frame.WRAPPER), ["title"]),
        ([], ["title"]),
        (["a", 1, 2], ["arguments"]),
        ({"least": 1}, ["title"]),
        ({"title": "a", "colour": 1}, ["colour"]),
    ],
)
def test_arguments_that_do_not_fit_are_refused_without_a_worker(
    wire: Wire, arguments: Any, named: list[str]
) -> None:
    wire.register(capabilities=QUERIES, workflow_command_contracts=CONTRACTS)
    body = ask(wire, "report", input=arguments).answer().refused(422, "invalid_query_arguments")
    assert list(body["validation_errors"]) == named


@pytest.mark.parametrize(
    ("arguments", "arrived"),
    [
        (["a"], ["a"]),
        (["a", 1], ["a", 1]),
        ({"least": 1, "title": "a"}, ["a", 1]),
        ({"title": "a"}, ["a", 7]),
        (avro(["a"]), ["a"]),
    ],
)
def test_arguments_that_fit_arrive_in_their_order(
    wire: Wire, arguments: Any, arrived: list[Any]
) -> None:
    wire.register(capabilities=QUERIES, workflow_command_contracts=CONTRACTS)
    ask(wire, "report", input=arguments)
    assert unavro(wire.take("query")["query_arguments"]) == arrived


def test_a_payload_that_cannot_be_read_is_refused_when_it_must_be_matched(wire: Wire) -> None:
    wire.register(capabilities=QUERIES, workflow_command_contracts=CONTRACTS)
    broken = {"codec": "avro", "blob": "wwHioz3/VYAiNw=="}
    ask(wire, "report", input=broken).answer().invalid("input.blob")
    # One by reference is the worker's to read.
    stored = {"codec": "avro", "external_storage": {"uri": "x"}}
    assert ask(wire, "report", input=stored).is_waiting


@pytest.mark.parametrize(
    "contracts",
    [
        {"Order": None},
        {"Order": []},
        {"Order": {"queries": "total"}},
        {"Order": {"queries": ["report"], "query_contracts": [None, {"name": "report"}]}},
        {
            "Order": {
                "queries": ["report"],
                "query_contracts": [{"name": "report", "parameters": [1]}],
            }
        },
        {"Child": {"queries": []}},
    ],
)
def test_contracts_that_make_no_sense_say_nothing(wire: Wire, contracts: Json) -> None:
    wire.register(capabilities=QUERIES, workflow_command_contracts=contracts)
    assert ask(wire, "report").is_waiting
