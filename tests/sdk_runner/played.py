"""Single passes, played in a loop of their own, and what they answered."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perdure.sdk.names import hashed
from perdure.sdk.passes import execute
from perdure.sdk.wire import read_invoke
from perdure.sdk.workflows import App

PENDING: dict[str, object] = {"pending": True}
LIMIT_SECONDS = 20
"""How long a test waits for a pass before it calls it hung."""


def done(data: object = None) -> dict[str, object]:
    """The memo of a finished step."""
    return {"data": data}


def failed(message: str) -> dict[str, object]:
    """The memo of a step that failed for good."""
    return {"error": {"message": message}}


@dataclass(frozen=True, slots=True)
class Played:
    """The answer of one pass."""

    status: int
    body: dict[str, Any]

    @property
    def names(self) -> list[str]:
        return [opcode["name"] for opcode in self.body["opcodes"]]

    @property
    def opcodes(self) -> dict[str, dict[str, Any]]:
        return {opcode["name"]: opcode for opcode in self.body["opcodes"]}

    @property
    def lines(self) -> list[tuple[str, int, str]]:
        return [(line["scope"], line["index"], line["message"]) for line in self.body["logs"]]


def body_of(
    workflow: str, memos: Mapping[str, object] | None = None, data: object = None, **more: object
) -> dict[str, Any]:
    """The body of an invoke, with memos under the names of their steps."""
    ctx = {"runId": "01R", "workflow": workflow, "attempt": 1, "app": "shop", "runner": ""}
    steps = {hashed(name): memo for name, memo in (memos or {}).items()}
    return {"event": {"name": "go", "data": data}, "steps": steps, "ctx": ctx | more}


async def play_soon(
    app: App, workflow: str, memos: Mapping[str, object] | None = None, **more: object
) -> Played:
    """Play one pass."""
    invoke = read_invoke(json.dumps(body_of(workflow, memos, **more)).encode())
    async with asyncio.timeout(LIMIT_SECONDS):
        reply = await execute(app, invoke, clock=lambda: 1718900000000)
    return Played(reply.status, json.loads(reply.body))


def play(
    app: App, workflow: str, memos: Mapping[str, object] | None = None, **more: object
) -> Played:
    """Play one pass in a loop of its own. Complaints of that loop fail the test."""

    async def main() -> Played:
        complaints: list[dict[str, Any]] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        played = await play_soon(app, workflow, memos, **more)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.wait_for(asyncio.gather(*others, return_exceptions=True), LIMIT_SECONDS)
        assert complaints == []
        return played

    return asyncio.run(main())
