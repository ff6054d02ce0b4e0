"""Models that answer in the form of chat completions, which most do, also those in the house.

The address is the operator's, so nobody vets it.
"""

import asyncio
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct

from perdure.clock import Clock
from perdure.core import limits
from perdure.core.push.usage import Usage, billionths
from perdure.features.model_calls.rules import Answered, Inference, Outcome, Unanswered
from perdure.web.client import AnswerTooLarge, ClientError, HttpClient

_PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
"""Answers after which asking again may help."""


class _Message(Struct):
    content: str | None = None


class _Choice(Struct):
    message: _Message


Tokens = Annotated[int, Meta(ge=0, le=limits.AI_TOKENS_PER_CALL_MAX)]


class _Details(Struct):
    cached_tokens: Tokens | None = None


class _Used(Struct):
    prompt_tokens: Tokens = 0
    completion_tokens: Tokens = 0
    prompt_tokens_details: _Details | None = None
    cost: Annotated[float, Meta(ge=0, le=limits.AI_COST_PER_CALL_MAX)] | None = None


class _Completion(Struct):
    choices: Annotated[list[_Choice], Meta(min_length=1)]
    model: str | None = None
    usage: _Used | None = None


_decoder = msgspec.json.Decoder(_Completion)


class Completions:
    """One provider: where it is, and which model is asked when a step names none."""

    def __init__(
        self, clock: Clock, url: str, *, key: str | None = None, model: str | None = None
    ) -> None:
        self._clock = clock
        self._url = url
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._model = model
        self._client = HttpClient()

    async def ask(self, inference: Inference) -> Outcome:
        """What the model says."""
        model = inference.model or self._model
        asked: dict[str, Any] = {"messages": Raw(inference.messages)}
        if model is not None:
            asked["model"] = model
        if inference.tokens_max is not None:
            asked["max_tokens"] = inference.tokens_max
        begun = self._clock.now()
        try:
            async with asyncio.timeout(limits.INFERENCE_TIMEOUT / limits.SECOND):
                status, body = await self._client.post(
                    self._url,
                    msgspec.json.encode(asked),
                    self._headers,
                    bytes_max=limits.INFERENCE_ANSWER_BYTES_MAX,
                )
        except TimeoutError:
            return Unanswered("the AI provider did not answer in time", is_passing=True)
        except AnswerTooLarge as error:
            return Unanswered(f"the AI provider: {error}", is_passing=False)
        except ClientError as error:
            return Unanswered(f"the AI provider: {error}", is_passing=True)
        latency_ms = max(0, self._clock.now() - begun) // 1_000
        if not 200 <= status < 300:
            said = body[:200].decode("utf-8", "replace")
            return Unanswered(f"the AI provider answered {status}: {said}", status in _PASSING)
        return read_completion(body, model, latency_ms)

    def close(self) -> None:
        """Let go of what is idle."""
        self._client.close()


def read_completion(body: bytes, model: str | None, latency_ms: int) -> Outcome:
    """What a provider answered."""
    try:
        told = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Unanswered(f"the AI provider's answer cannot be read: {error}", is_passing=False)
    used = told.usage or _Used()
    named = (told.model or model or "")[: limits.NAME_LENGTH_MAX]
    details = used.prompt_tokens_details
    return Answered(
        text=told.choices[0].message.content or "",
        model=named,
        usage=Usage(
            model=named or None,
            tokens=used.prompt_tokens + used.completion_tokens,
            cost=None if used.cost is None else billionths(used.cost),
            latency_ms=latency_ms,
            cached_tokens=None if details is None else details.cached_tokens,
        ),
    )
