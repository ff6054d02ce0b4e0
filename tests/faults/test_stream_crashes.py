"""A server that is killed between appends: nothing acknowledged is lost, no offset comes twice."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Semaphore
from typing import Any

import httpx
import pytest

from tests.support.http import CONTROL_VERSION, avro, unavro
from tests.support.postgres import Cluster
from tests.support.server import STORES, ServerProcess

Json = dict[str, Any]
WRITERS = 4
KILLS = 3


@pytest.fixture(params=STORES)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerProcess]:
    """Two processes where the store allows it: every call may reach another node."""
    if request.param == "sqlite":
        server = ServerProcess(tmp_path / "perdure.db")
    else:
        cluster: Cluster = request.getfixturevalue("postgres_cluster")
        server = ServerProcess(cluster.fresh_database(), log_path=tmp_path / "log", processes=2)
    with server:
        yield server


def call(server: ServerProcess, method: str, path: str, body: Json | None = None) -> Json:
    answer = httpx.request(
        method,
        f"{server.url}/api{path}",
        json=body,
        headers={CONTROL_VERSION: "2"},
        timeout=90,
        trust_env=False,
    )
    answer.raise_for_status()
    decoded: Json = answer.json()
    return decoded


class Writer:
    """Appends numbered items until told to stop; what was not answered is sent again."""

    def __init__(self, server: ServerProcess, path: str, name: str, told: Semaphore) -> None:
        self.server = server
        self.path = path
        self.name = name
        self._told = told
        self.acknowledged: dict[str, int] = {}

    def write(self, stop: Event) -> None:
        number = 0
        while not stop.is_set():
            values = [f"{self.name}-{number + step}" for step in range(3)]
            items = [{"payload": avro(value), "idempotency_key": value} for value in values]
            try:
                done = call(self.server, "POST", self.path, {"items": items})
            except httpx.HTTPError:
                # Perhaps it was taken, perhaps not: the same again is safe.
                continue
            offsets = done["accepted_offsets"]
            for value, offset in zip(values, offsets, strict=True):
                assert self.acknowledged.setdefault(value, offset) == offset
            number += 2  # the last one comes again
            self._told.release()


def test_appends_in_a_server_that_is_killed(server: ServerProcess) -> None:
    start = {"workflow_id": "o", "workflow_type": "Order", "task_queue": "q", "input": avro([])}
    run_id = call(server, "POST", "/workflows", start)["run_id"]
    path = f"/workflows/o/runs/{run_id}/streams/log/items"
    told = Semaphore(0)
    writers = [Writer(server, path, f"w{number}", told) for number in range(WRITERS)]
    stop, chance = Event(), random.Random(4)
    with ThreadPoolExecutor(WRITERS) as threads:
        writing = [threads.submit(writer.write, stop) for writer in writers]
        try:
            for _ in range(KILLS):
                for _ in range(chance.randint(8, 20)):
                    assert told.acquire(timeout=120), "nothing is acknowledged any more"
                server.restart()
        finally:
            stop.set()
        for future in writing:
            future.result(timeout=120)

    stored: dict[str, int] = {}
    offsets: list[int] = []
    at = 0
    while True:
        page = call(server, "GET", f"{path}?from={at}&max_items=500")
        if not page["items"]:
            break
        for item in page["items"]:
            offsets.append(item["offset"])
            assert item["idempotency_key"] not in stored, "a key has one item"
            stored[item["idempotency_key"]] = item["offset"]
            assert unavro(item["payload"]) == item["idempotency_key"]
        at = page["next_offset"]
    assert offsets == list(range(len(offsets))), "no gap, and nothing twice"
    assert page["stream"]["total_items"] == len(offsets)
    for writer in writers:
        for value, offset in writer.acknowledged.items():
            assert stored[value] == offset, "what was acknowledged is there, where it was said"
