"""Explanations of runs by a model, which sees what happened, but no payloads.

Nothing of it is stored, and its usage is not counted for the run.
"""

import asyncio
from typing import Any

import msgspec

from perdure.core.limits import (
    EXPLANATION_FACTS_BYTES_MAX,
    EXPLANATIONS_AT_ONCE_MAX,
    HISTORY_READ_MAX,
)
from perdure.core.run.state import Run
from perdure.engine.beat import Engine
from perdure.features.model_calls.loops import Provider
from perdure.features.model_calls.rules import Answered, Inference, Outcome
from perdure.protocols.durablex.runs import Runs
from perdure.protocols.durablex.surface import encode
from perdure.protocols.durablex.timeline import Fact, facts_of, logs_of, steps_of
from perdure.protocols.durablex.views import run_view, waiting_view
from perdure.web.message import HttpError, Request, Response
from perdure.web.stream import EventStream, stream

_KEEP_ALIVE_SECONDS = 15
_TASK = (
    "You are told what is known of one run of a durable workflow: its status, its steps in order, "
    "its last log lines. Say in a few plain sentences what happened, why it ended or what it waits "
    "for, and what a person could do next. Say so where the facts do not tell."
)
_STEP_MEMBERS = ("name", "status", "attempt", "error", "durationMs", "nextAttemptAt", "runAfter")
"""What the model sees of a step: neither its input nor its output."""


class RunExplanation:
    """The route /runs/{id}/explain."""

    def __init__(self, engine: Engine, runs: Runs, provider: Provider | None) -> None:
        self._store = engine.store
        self._runs = runs
        self._provider = provider
        self._room = asyncio.Semaphore(EXPLANATIONS_AT_ONCE_MAX)

    async def explain(self, request: Request) -> Response:
        """POST /runs/{id}/explain."""
        run = await self._runs.require(request)
        provider = self._provider
        if provider is None:
            raise HttpError(501, "ai_provider_missing", "no AI provider is configured")
        facts = facts_of(await self._store.read_history(run.run_id, 0, HISTORY_READ_MAX))
        description = description_of(run, facts)

        async def feed(out: EventStream) -> None:
            request_task = asyncio.ensure_future(self._ask(provider, run.run_id, description))
            try:
                while not (await asyncio.wait([request_task], timeout=_KEEP_ALIVE_SECONDS))[0]:
                    await out.keep_alive()
                for frame in frames_of(request_task.result()):
                    await out.send(frame["type"], encode(frame))
            finally:
                request_task.cancel()

        return stream(feed)

    async def _ask(self, provider: Provider, run_id: str, description: bytes) -> Outcome:
        messages = [
            {"role": "system", "content": _TASK},
            {"role": "user", "content": description.decode()},
        ]
        async with self._room:
            return await provider.ask(
                Inference(run_id=run_id, sequence=0, messages=encode(messages), due_at=0)
            )


def description_of(run: Run, facts: list[Fact]) -> bytes:
    """What the model sees of a run: as many of its last steps and log lines as fit."""
    steps = [{name: row[name] for name in _STEP_MEMBERS if name in row} for row in steps_of(facts)]
    logs = [{name: row[name] for name in ("level", "message", "scope")} for row in logs_of(facts)]
    while True:
        description = msgspec.json.encode({"run": _summary(run), "steps": steps, "logs": logs})
        if len(description) <= EXPLANATION_FACTS_BYTES_MAX or not (steps or logs):
            return description
        steps, logs = steps[(len(steps) + 1) // 2 :], logs[(len(logs) + 1) // 2 :]


def _summary(run: Run) -> dict[str, Any]:
    view = {**run_view(run), **waiting_view(run)}
    members = ("workflowName", "app", "status", "error", "errorCount", "attempt", "triggerKind")
    return {name: view[name] for name in (*members, "waitReason", "durationMs") if name in view}


def frames_of(outcome: Outcome) -> list[dict[str, str]]:
    """The frames of the answer: the text and its end, or an error."""
    if isinstance(outcome, Answered):
        return [{"type": "token", "text": outcome.text}, {"type": "done"}]
    return [{"type": "error", "error": outcome.message}]
