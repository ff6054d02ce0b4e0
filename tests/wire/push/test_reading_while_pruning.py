"""A run that is pruned between the two reads of an answer is not found; nothing breaks."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from perdure.features.retention.loops import RunPruner
from tests.support.http import Json, Wire, a_wire, complete_workflow
from tests.support.runner import a_runner, settled, start, workflow

DAY = 86_400


@contextmanager
def pruned_after(wire: Wire, read: str) -> Iterator[list[None]]:
    """Once something was read, all runs that are too old go, before the next read."""
    store: Any = wire.server.engine.store
    original = getattr(store, read)
    passes: list[None] = []

    async def reading(*args: Any) -> Any:
        found = await original(*args)
        if not passes:
            passes.append(None)
            await wire.find_loop(RunPruner).prune()
        return found

    setattr(store, read, reading)
    try:
        yield passes
    finally:
        delattr(store, read)


def old_run(wire: Wire) -> Json:
    wire.register()
    started = wire.run_to(complete_workflow())
    wire.jump(seconds=40 * DAY)
    return started


@pytest.mark.parametrize("read", ["read_instance", "read_run"])
@pytest.mark.parametrize("of_a_run", [False, True])
def test_a_description(wire: Wire, read: str, *, of_a_run: bool) -> None:
    run_id = old_run(wire)["run_id"]
    path = f"/workflows/order-1/runs/{run_id}" if of_a_run else "/workflows/order-1"
    with pruned_after(wire, read) as passes:
        answer = wire.control("GET", path)
    assert passes
    if read == "read_instance":
        answer.refused(404, "run_not_found" if of_a_run else "instance_not_found")
    else:
        assert answer.status < 500, answer.content


def test_a_history(wire: Wire) -> None:
    run_id = old_run(wire)["run_id"]
    path = f"/workflows/order-1/runs/{run_id}/history"
    with pruned_after(wire, "read_instance") as passes:
        wire.control("GET", path).refused(404, "run_not_found")
    assert passes


@pytest.mark.parametrize("read", ["read_instance", "read_run"])
def test_a_standalone_activity(wire: Wire, read: str) -> None:
    wire.register()
    body = {"activity_type": "charge", "activity_id": "job-1", "task_queue": "q"}
    wire.control("POST", "/activities", body).ok(201)
    wire.report_attempt(wire.take("activity"), "complete", result=None).ok()
    wire.jump(seconds=40 * DAY)
    with pruned_after(wire, read) as passes:
        answer = wire.control("GET", "/activities/job-1")
    assert passes
    if read == "read_instance":
        answer.refused(404, "activity_not_found")
    assert answer.status < 500, answer.content


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/runs/{}", None),
        ("POST", "/runs/{}/replay", {}),
        ("POST", "/runs/{}/retry-from-step", {"step": "one"}),
        ("GET", "/runs?search=paid", None),
    ],
)
def test_a_push_run(tmp_path: Path, method: str, path: str, body: Json | None) -> None:
    with a_wire(tmp_path, run_retention=DAY * 1_000_000) as wire:
        runner = a_runner(wire, workflow("order"))
        run_id = start(wire, "order")
        runner.next().returned()
        settled(wire, run_id, "succeeded")
        wire.jump(seconds=3 * DAY)
        read = "read_run" if "{}" in path else "read_pushed"
        with pruned_after(wire, read) as passes:
            answer = wire.call(method, path.format(run_id), body)
        assert passes
        if read == "read_run":
            answer.refused(404, "run_not_found")
        assert answer.status < 500, answer.content
