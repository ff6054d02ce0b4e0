"""JSON that is nested deeply: refused at every door, or readable for ever."""

import json
from typing import Any

import pytest

from tests.support.http import Wire
from tests.support.runner import (
    a_runner,
    op,
    ran,
    rows,
    settled,
    show,
    start,
    step_id,
    steps,
    workflow,
)

TOO_DEEP = "[" * 100_000 + "]" * 100_000


def test_what_nobody_could_read_back_is_refused(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")
    runner.next().found(op("Approval", "ok", tool="pay"))
    settled(wire, run_id, "needs_attention")
    (asked,) = rows(wire, "/approvals")

    with wire.nothing_changes():
        for path, body in (
            ("/events", f'{{"name":"order","data":{TOO_DEEP}}}'),
            ("/events", f'{{"name":"order","junk":{TOO_DEEP}}}'),
            ("/workflows/shop/order/trigger", f'{{"input":{TOO_DEEP}}}'),
            ("/register", TOO_DEEP),
            (f"/approvals/{asked['id']}/decision", f'{{"status":"denied","args":{TOO_DEEP}}}'),
            (f"/runs/{run_id}/scores", f'{{"name":{TOO_DEEP}}}'),
        ):
            wire.call("POST", path, content=body.encode()).refused(400, "validation_failed")


def test_an_answer_of_a_runner_that_nobody_could_read_fails_its_run(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")
    invoke = runner.next()
    step = f'{{"op":"StepRun","id":"{step_id("a")}","name":"a","data":{TOO_DEEP}}}'
    payload = f'{{"status":206,"body":{{"opcodes":[{step}],"logs":[]}}}}'

    runner.send_text(f'{{"type":"invoke.result","id":"{invoke.id}","payload":{payload}}}')

    assert "nested too deeply" in settled(wire, run_id, "failed")["error"]["message"]
    start(wire, "order")
    runner.next().returned()


@pytest.mark.parametrize("depth", [310, 500])
def test_what_is_nested_less_can_be_read_where_it_was_put(wire: Wire, depth: int) -> None:
    runner = a_runner(wire, workflow("order"))
    deep: Any = None
    for _ in range(depth):
        deep = [deep]

    run_id = start(wire, "order", deep)
    runner.next().found(ran("a", deep))
    runner.next().returned(deep)

    run = settled(wire, run_id, "succeeded")
    assert json.dumps(run["input"]) == json.dumps(run["result"]) == json.dumps(deep)
    assert steps(wire, run_id)[0]["output"] == deep
    assert show(wire, run_id)["status"] == "succeeded"
