"""Datasets, and evals of workflows on them."""

from typing import Any

import pytest

from perdure.core import limits
from tests.support.http import Answer, Json, Wire
from tests.support.runner import a_runner, op, rows, settled, start, workflow


def a_dataset(wire: Wire, *items: Json, **members: Any) -> str:
    told = wire.call("POST", "/datasets", {"name": "cases", **members}).ok(201)
    for item in items:
        wire.call("POST", f"/datasets/{told['id']}/items", item).ok(201)
    return str(told["id"])


def evaluate(wire: Wire, dataset_id: str, **members: Any) -> Answer:
    return wire.call("POST", f"/datasets/{dataset_id}/eval", {"workflow": "write", **members})


def test_a_dataset_keeps_its_items(wire: Wire) -> None:
    first = a_dataset(wire, name="one", description="the first")
    items: list[Json] = [
        {"input": {"n": 1}, "expected": [1], "metadata": {"by": "Ann"}},
        {"input": None},
    ]
    dataset_id = a_dataset(wire, *items)

    one, two = rows(wire, "/datasets")
    assert (one["id"], one["itemCount"], "description" in one) == (dataset_id, 2, False)
    assert (two["id"], two["name"], two["description"]) == (first, "one", "the first")
    assert wire.call("GET", f"/datasets/{dataset_id}").ok() == one
    newest, oldest = rows(wire, f"/datasets/{dataset_id}/items")
    assert oldest["input"] == {"n": 1}
    assert (oldest["expected"], oldest["metadata"], oldest["archived"]) == (
        [1],
        {"by": "Ann"},
        False,
    )
    assert (newest["input"], "expected" in newest) == (None, False)
    path = f"/datasets/{dataset_id}/items/{oldest['id']}"
    for _ in range(2):
        assert wire.call("PATCH", path, {"archived": True}).ok()["archived"] is True
    assert [row["id"] for row in rows(wire, f"/datasets/{dataset_id}/items")] == [newest["id"]]
    shown = rows(wire, f"/datasets/{dataset_id}/items?archived=true")
    assert [row["archived"] for row in shown] == [False, True]
    assert wire.call("GET", f"/datasets/{dataset_id}").ok()["itemCount"] == 1
    wire.call("PATCH", path, {"archived": False}).ok()
    assert wire.call("GET", f"/datasets/{dataset_id}").ok()["itemCount"] == 2


def test_a_workflow_is_run_for_every_case_past_every_gate(wire: Wire) -> None:
    strict = workflow(
        "write",
        rateLimit={"limit": 1, "perMs": 60_000},
        singleton={},
        debounce={"periodMs": 1_000},
        idempotency={},
        tokenThrottle={"tokens": 1, "perMs": 60_000},
        triggers=[],
    )
    runner = a_runner(wire, strict)
    dataset_id = a_dataset(
        wire, {"input": {"n": 1}, "expected": 10}, {"input": {"n": 2}}, {"input": {"n": 3}}
    )
    gone = rows(wire, f"/datasets/{dataset_id}/items")[0]
    wire.call("PATCH", f"/datasets/{dataset_id}/items/{gone['id']}", {"archived": True}).ok()

    told = evaluate(wire, dataset_id, label="v2").ok(201)
    eval_set, run_ids = told["evalSet"], told["runIds"]
    assert (eval_set["runCount"], eval_set["scores"], len(run_ids)) == (2, [], 2)
    assert (eval_set["label"], eval_set["app"], eval_set["workflow"]) == ("v2", "shop", "write")
    invokes = {invoke.run_id: invoke for invoke in (runner.next(), runner.next())}
    first, second = (invokes[run_id] for run_id in run_ids)
    assert first.body["event"] == {"name": "write", "data": {"n": 1}}
    item_id = first.context["eval"]["itemId"]
    case = {"setId": eval_set["id"], "itemId": item_id, "expected": 10}
    assert first.context["eval"] == case
    assert "expected" not in second.context["eval"]
    first.found(op("Score", "score:good", data={"name": "good", "value": 1}))
    runner.next().returned()
    second.found(
        op("Score", "score:good", data={"name": "good", "value": 0.5}),
        op("Score", "score:tone", data={"name": "tone", "stringValue": "dry"}),
    )
    runner.next().returned()

    for run_id in run_ids:
        assert settled(wire, run_id, "succeeded")["triggerKind"] == "eval"
    run = wire.call("GET", f"/runs/{run_ids[0]}").ok()
    assert run["eval"] == {"setId": eval_set["id"], "itemId": item_id}
    scored = wire.call("GET", f"/eval-sets/{eval_set['id']}").ok()
    assert scored["scores"] == [{"name": "good", "avg": 0.75, "count": 2}]
    human = {"name": "good", "value": 0, "source": "human"}
    wire.call("POST", f"/runs/{run_ids[0]}/scores", human).ok()
    (listed,) = rows(wire, f"/datasets/{dataset_id}/eval-runs")
    assert listed["scores"] == [{"name": "good", "avg": 0.5, "count": 3}]
    assert {row["id"] for row in rows(wire, "/runs?runType=eval")} == set(run_ids)


def test_a_case_that_is_replayed_is_told_again_and_not_counted_again(wire: Wire) -> None:
    runner = a_runner(wire, workflow("write"))
    dataset_id = a_dataset(wire, {"input": 1, "expected": 2})
    told = evaluate(wire, dataset_id).ok(201)
    runner.next().returned()
    settled(wire, told["runIds"][0], "succeeded")

    wire.call("POST", f"/runs/{told['runIds'][0]}/replay").ok()
    invoke = runner.next()
    assert invoke.context["eval"]["expected"] == 2
    invoke.found(op("Score", "score:good", data={"name": "good", "value": 1}))
    runner.next().returned()

    shown = wire.call("GET", f"/eval-sets/{told['evalSet']['id']}").ok()
    assert (shown["runCount"], shown["scores"]) == (1, [])


def test_evals_obey_concurrency_and_budgets(wire: Wire) -> None:
    limited = workflow(
        "write",
        concurrency={"limit": 1},
        budget={"windowMs": 60_000, "maxTokens": 10},
    )
    runner = a_runner(wire, limited)
    dataset_id = a_dataset(wire, {"input": 1}, {"input": 2})
    first, second = evaluate(wire, dataset_id).ok(201)["runIds"]
    invoke = runner.next()
    assert invoke.run_id == first
    assert wire.server.invoker.count == 1
    used = {"op": "StepRun", "id": "a", "name": "a", "data": 1, "usage": {"tokensIn": 10}}
    invoke.found(used)

    settled(wire, first, "paused")
    assert settled(wire, second, "paused")["pausedBy"]["reason"] == "budget"


def test_what_is_made_under_one_identity_is_made_once(wire: Wire) -> None:
    a_runner(wire, workflow("write"))
    dataset_id = a_dataset(wire, dedupeId="d")
    assert a_dataset(wire, dedupeId="d") == dataset_id
    path = f"/datasets/{dataset_id}/items"
    items = [wire.call("POST", path, {"input": n, "dedupeId": "i"}).ok(201) for n in (1, 2)]
    assert items[0] == items[1]
    evals = [evaluate(wire, dataset_id, dedupeId="e").ok(201) for _ in range(2)]
    assert evals[0] == evals[1]
    assert len(rows(wire, "/runs")) == 1
    wire.advance(seconds=limits.DEDUPE_WINDOW // limits.SECOND + 1)
    assert evaluate(wire, dataset_id, dedupeId="e").ok(201) != evals[0]


def test_what_makes_no_sense_is_refused_and_changes_nothing(wire: Wire) -> None:
    a_runner(wire, workflow("write"))
    empty = a_dataset(wire)
    full = a_dataset(wire, {"input": 1})
    long = "x" * 256
    bad: list[tuple[str, str, Any]] = [
        ("POST", "/datasets", {}),
        ("POST", "/datasets", {"name": " "}),
        ("POST", "/datasets", {"name": long}),
        ("POST", "/datasets", {"name": "a", "description": "x" * 5_000}),
        ("POST", "/datasets", {"name": "a", "dedupeId": ""}),
        ("POST", f"/datasets/{full}/items", {}),
        ("POST", f"/datasets/{full}/items", {"input": "x" * 600_000}),
        ("POST", f"/datasets/{full}/items", {"input": 1, "expected": "x" * 300_000}),
        ("PATCH", f"/datasets/{full}/items/x", {"archived": "yes"}),
        ("POST", f"/datasets/{full}/eval", {}),
        ("POST", f"/datasets/{full}/eval", {"workflow": "write", "label": long}),
        ("GET", f"/datasets/{full}/items?archived=maybe", None),
    ]
    for method, path, body in bad:
        wire.call(method, path, body).refused(400, "validation_failed")
    evaluate(wire, empty).refused(400, "dataset_empty")
    evaluate(wire, full, workflow="nobody").refused(404, "workflow_not_found")
    evaluate(wire, full, app="nobody").refused(404, "workflow_not_found")
    evaluate(wire, "nobody").refused(404, "dataset_not_found")
    for path in ("/datasets/nobody", "/datasets/nobody/items", "/datasets/nobody/eval-runs"):
        wire.call("GET", path).refused(404, "dataset_not_found")
    wire.call("POST", "/datasets/nobody/items", {"input": 1}).refused(404, "dataset_not_found")
    wire.call("GET", "/eval-sets/nobody").refused(404, "eval_set_not_found")
    nobody = wire.call("PATCH", f"/datasets/{full}/items/nobody", {"archived": True})
    nobody.refused(404, "dataset_item_not_found")
    assert [row["itemCount"] for row in rows(wire, "/datasets")] == [1, 0]
    assert rows(wire, "/runs") == []


def test_a_dataset_has_an_end(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.features.scores.dataset_operations.DATASET_ITEMS_MAX", 2)
    monkeypatch.setattr("perdure.features.scores.dataset_operations.DATASET_BYTES_MAX", 10)
    monkeypatch.setattr("perdure.features.scores.dataset_operations.DATASETS_MAX", 1)
    dataset_id = a_dataset(wire, {"input": 1})
    path = f"/datasets/{dataset_id}/items"
    wire.call("POST", path, {"input": "123456789"}).refused(409, "structural_limit_exceeded")
    wire.call("POST", path, {"input": 2}).ok(201)
    wire.call("POST", path, {"input": 3}).refused(409, "structural_limit_exceeded")
    wire.call("POST", "/datasets", {"name": "b"}).refused(409, "structural_limit_exceeded")


def test_a_failure_handler_of_a_case_knows_the_case(wire: Wire) -> None:
    runner = a_runner(wire, workflow("write", onFailure=True))
    dataset_id = a_dataset(wire, {"input": 1, "expected": 2})
    evaluate(wire, dataset_id).ok(201)
    runner.next().answer(400, {"error": "no"})

    invoke = runner.next()
    assert (invoke.context["onFailure"], invoke.context["eval"]["expected"]) == (True, 2)
    start(wire, "write")
    assert "eval" not in runner.next().context
