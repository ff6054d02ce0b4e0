"""Rules of model calls that the engine makes: counted before they are made, tried a few times.

Like the body of a step, a call may be made twice if a node dies during it; its answer counts once.
"""

from typing import Any, TypeAlias

from msgspec import Struct, structs

from perdure.core.limits import (
    INFERENCE_BACKOFF,
    INFERENCE_LEASE_TIMEOUT,
    INFERENCE_TRIES_MAX,
)
from perdure.core.push.command import StepError
from perdure.core.push.step import complete_step, fail_step
from perdure.core.push.usage import Usage, meter
from perdure.core.run.context import Context
from perdure.core.run.history import Raw, encode
from perdure.core.run.operation import PushStep
from perdure.core.run.state import Run

NO_END = "the server stopped during the last try of the model call"
NO_PROVIDER = "no AI provider configured"


class Inference(Struct, frozen=True, kw_only=True):
    """A call that a step waits for."""

    run_id: str
    sequence: int
    messages: bytes
    model: str | None = None
    tokens_max: int | None = None
    tries: int = 0
    due_at: int


class Answered(Struct, frozen=True, kw_only=True):
    """The answer of a model."""

    text: str
    model: str
    usage: Usage


class Unanswered(Struct, frozen=True):
    """Why there is no answer, and whether a retry may succeed."""

    message: str
    is_passing: bool


Outcome: TypeAlias = Answered | Unanswered


def begin(inference: Inference, now: int) -> Inference | None:
    """The call with one more try, if any is left; due again at its timeout."""
    if inference.tries >= INFERENCE_TRIES_MAX:
        return None
    return structs.replace(
        inference, tries=inference.tries + 1, due_at=now + INFERENCE_LEASE_TIMEOUT
    )


def conclude(inference: Inference, outcome: Outcome, now: int) -> Inference | None:
    """The call after a failed try that will be retried; none when it is over."""
    is_passing = isinstance(outcome, Unanswered) and outcome.is_passing
    if not is_passing or inference.tries >= INFERENCE_TRIES_MAX:
        return None
    return structs.replace(inference, due_at=now + (INFERENCE_BACKOFF << (inference.tries - 1)))


def waiting_step(run: Run | None, inference: Inference) -> PushStep | None:
    """The step that waits for a call; none if it no longer does."""
    step = None if run is None or run.is_closed else run.operations.get(inference.sequence)
    return step if isinstance(step, PushStep) and step.is_open else None


def end_inference(run: Run, ctx: Context, step: PushStep, outcome: Outcome, tries: int) -> None:
    """Finish a step with the answer of its model, or fail it."""
    step.attempt = max(tries, 1)
    if isinstance(outcome, Unanswered):
        error = StepError(outcome.message, encode({"message": outcome.message}))
        fail_step(run, ctx, step, error)
        return
    meter(run, ctx, outcome.usage)
    data = encode({"text": outcome.text, "model": outcome.model})
    complete_step(run, ctx, step, data, {"ai": Raw(encode(_journal(outcome)))})


def _journal(answered: Answered) -> dict[str, Any]:
    usage = answered.usage
    members = {
        "kind": "infer",
        "latencyMs": usage.latency_ms or 0,
        "model": answered.model,
        "tokens": usage.tokens,
        "cacheReadTokens": usage.cached_tokens,
    }
    return {name: value for name, value in members.items() if value is not None}
