"""There is an end to queries: to how many wait, and to the server."""

import asyncio
import json
from pathlib import Path

from bench.machine import raise_file_limit
from tests.support.http import (
    CONTROL_VERSION,
    WORKER_VERSION,
    Answer,
    Json,
    Wire,
    a_wire,
    schedule_activity,
    start_timer,
    wait_for_condition,
)
from tests.wire.queries.asking import QUERIES, ask, park, report


def test_only_so_many_queries_wait_on_one_queue(tmp_path: Path) -> None:
    with a_wire(tmp_path, queries_pending_max=2) as wire:
        wire.register(capabilities=QUERIES)
        wire.register("elsewhere", task_queue="other", capabilities=QUERIES)
        wire.start()
        wire.start("order-2", task_queue="other")
        first, second = ask(wire), ask(wire)
        body = ask(wire).answer().refused(429, "query_task_queue_full")
        assert (body["max_pending_per_queue"], body["result"]) == (2, None)
        assert ask(wire, workflow_id="order-2").is_waiting, "another queue has its own room"

        wire.take("query")
        third = ask(wire)
        assert first.is_waiting
        assert second.is_waiting
        assert third.is_waiting


def test_a_stopping_server_lets_nobody_wait(wire: Wire) -> None:
    wire.register("idle", supported_workflow_types=["Child"])
    poll = park(wire, "idle")
    pending, leased = ask(wire, "one"), ask(wire, "two")
    wire.take("query")

    wire.server.drain()

    for asked in (pending, leased):
        body = asked.answer().refused(503, "query_task_queue_unavailable")
        assert (body["retryable"], body["retry_after_seconds"]) == (True, 1)
    ask(wire).answer().refused(503, "query_task_queue_unavailable")
    assert poll.answer().ok()["task"] is None
    assert wire.poll("query")["task"] is None


def test_a_thousand_queries_at_once_are_all_answered_or_refused(tmp_path: Path) -> None:
    """More than may wait: the rest hear so. Nobody is left without a word."""
    raise_file_limit()
    with a_wire(tmp_path, queries_pending_max=900) as wire:
        wire.register(capabilities=QUERIES)
        wire.run_to(wait_for_condition())
        with wire.nothing_changes():
            answers = wire.run(ask_a_thousand(wire))
        assert wire.server.query_broker.open_count == 0

    assert len(answers) == 1_000
    results = {
        number: answer.ok()["result"] for number, answer in answers.items() if answer.status == 200
    }
    assert results == {number: f"q{number}" for number in results}
    assert len(results) >= 900
    for number in answers.keys() - results.keys():
        answers[number].refused(429, "query_task_queue_full")


async def ask_a_thousand(wire: Wire) -> dict[int, Answer]:
    """All of them are under way before a worker polls for the first."""
    answers: dict[int, Answer] = {}

    async def ask_one(number: int) -> None:
        path = f"/api/workflows/order-1/query/q{number}"
        answers[number] = await send_alone(wire.port, path, {}, f"{CONTROL_VERSION}: 2")

    async def work() -> None:
        async def send(path: str, body: Json) -> Json:
            place = f"/api/worker/query-tasks/{path}"
            return (await send_alone(wire.port, place, body, f"{WORKER_VERSION}: 1.20")).ok()

        poll = {"worker_id": "w1", "task_queue": "q", "timeout_seconds": 0}
        while len(answers) < 1_000:
            task = (await send("poll", poll))["task"]
            if task is not None:
                done = {"lease_owner": "w1", "query_task_attempt": 1, "result": task["query_name"]}
                await send(f"{task['query_task_id']}/complete", done)

    async with asyncio.TaskGroup() as group:
        for number in range(1_000):
            group.create_task(ask_one(number))
        await wire.loop.turn_until(
            lambda: wire.server.query_broker.open_count + len(answers) == 1_000
        )
        for _ in range(4):
            group.create_task(work())
    return answers


async def send_alone(port: int, path: str, body: Json, version: str) -> Answer:
    """One call on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{version}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    writer.write(head.encode() + content)
    told, _, told_content = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return Answer(int(told.split(b" ")[1]), {}, told_content)


def test_queries_do_not_disturb_the_work_of_a_run(wire: Wire) -> None:
    wire.start("busy")
    task = wire.take()
    asked = ask(wire, workflow_id="busy")
    query = wire.take("query")
    wire.complete(task, schedule_activity(), start_timer(60))
    report(wire, query, "complete", result=1).ok()
    assert asked.answer().ok()["result"] == 1
    assert wire.event_types("busy").count("ActivityScheduled") == 1
