"""Client of an AI provider that speaks the chat-completions API.

The operator chose the address, so it is not checked by the egress guard.
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
"""HTTP statuses after which a retry may succeed."""


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
    """One provider: its URL, its key, and the model for steps that name none."""

    def __init__(
        self, clock: Clock, url: str, *, key: str | None = None, model: str | None = None
    ) -> None:
        self._clock = clock
        self._url = url
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._model = model
        self._client = HttpClient()

    async def ask(self, inference: Inference) -> Outcome:
        """Send one request to the provider and read its answer."""
        model = inference.model or self._model
        request: dict[str, Any] = {"messages": Raw(inference.messages)}
        if model is not None:
            request["model"] = model
        if inference.tokens_max is not None:
            request["max_tokens"] = inference.tokens_max
        started_at = self._clock.now()
        try:
            async with asyncio.timeout(limits.INFERENCE_TIMEOUT / limits.SECOND):
                status, body = await self._client.post(
                    self._url,
                    msgspec.json.encode(request),
                    self._headers,
                    bytes_max=limits.INFERENCE_ANSWER_BYTES_MAX,
                )
        except TimeoutError:
            return Unanswered("the AI provider did not answer in time", is_passing=True)
        except AnswerTooLarge as error:
            return Unanswered(f"the AI provider: {error}", is_passing=False)
        except ClientError as error:
            return Unanswered(f"the AI provider: {error}", is_passing=True)
        latency_ms = max(0, self._clock.now() - started_at) // 1_000
        if not 200 <= status < 300:
            excerpt = body[:200].decode("utf-8", "replace")
            return Unanswered(f"the AI provider answered {status}: {excerpt}", status in _PASSING)
        return read_completion(body, model, latency_ms)

    def close(self) -> None:
        """Close idle connections."""
        self._client.close()


def read_completion(body: bytes, model: str | None, latency_ms: int) -> Outcome:
    """Read the body of a successful answer."""
    try:
        completion = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Unanswered(f"the AI provider's answer cannot be read: {error}", is_passing=False)
    usage = completion.usage or _Used()
    model_name = (completion.model or model or "")[: limits.NAME_LENGTH_MAX]
    details = usage.prompt_tokens_details
    return Answered(
        text=completion.choices[0].message.content or "",
        model=model_name,
        usage=Usage(
            model=model_name or None,
            tokens=usage.prompt_tokens + usage.completion_tokens,
            cost=None if usage.cost is None else billionths(usage.cost),
            latency_ms=latency_ms,
            cached_tokens=None if details is None else details.cached_tokens,
        ),
    )
