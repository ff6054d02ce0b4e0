"""`ctx.ai`: model calls as steps, with what they use up, within the cap of the run.

Whoever makes a call says what it used, or returns what the provider answered: the common forms
(chat completions, messages, results of AI SDKs) are read. The engine adds it up; a cost is only
known where the app has a `price`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from perdure.sdk.errors import BudgetError, NonRetriableError
from perdure.sdk.limits import EMBED_BATCH_DEFAULT, LOOP_TURNS_MAX
from perdure.sdk.policies import Retry
from perdure.sdk.step_threads import is_async
from perdure.sdk.steps import ABSENT, Board, Future, Inference, Report, Step
from perdure.sdk.wire import Json, Opcode, SpendCap, Spent

T = TypeVar("T")
Kind = Literal["wrap", "embed", "loop"]


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a model call used up, as far as it is known."""

    model: str | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    cached_tokens: int | None = None
    """How many of those that went in a cache of the provider knew."""
    cost: float | None = None
    stop_reason: str | None = None


Price = Callable[[Usage], float | None]
"""What a call costs; None where that is not known."""


class ToolCall(msgspec.Struct, frozen=True):
    """What a model wants done."""

    id: str
    name: str
    input: Json = None


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """What a model said in one turn of a loop: calls of tools, or its last word."""

    calls: list[ToolCall] = []
    final: Json = None
    usage: Usage | None = None


class Round(msgspec.Struct, frozen=True):
    """A turn with calls, and what came of each."""

    calls: list[ToolCall]
    results: dict[str, Json]


class Looped(msgspec.Struct, frozen=True):
    """How a loop ended: with the last word of the model, or without."""

    final: Json
    turns: int
    is_final: bool


class Ai:
    """`ctx.ai`."""

    __slots__ = ("_board", "_cap", "_price", "_spent", "_step")

    def __init__(
        self,
        board: Board,
        step: Step,
        spent: Spent | None,
        cap: SpendCap | None,
        price: Price | None,
    ) -> None:
        self._board = board
        self._step = step
        self._spent = spent or Spent()
        self._cap = cap
        self._price = price

    def call(
        self,
        id: str,
        function: Callable[..., object],
        /,
        *args: object,
        returns: type[T] | None = None,
        retry: Retry | None = None,
        input: object = ABSENT,
        usage: Callable[[Any], Usage | None] | None = None,
    ) -> Future[Any]:
        """Call a model once: `function(*args)`, whose result is remembered with what it used.

        `usage` reads that from the result; left out, answers of well-known forms are understood.
        """
        report = self._report("wrap", usage or read_usage)
        return self._perform(id, function, args, report, returns=returns, retry=retry, input=input)

    def infer(
        self,
        id: str,
        messages: Sequence[object],
        *,
        model: str | None = None,
        tokens_max: int | None = None,
    ) -> Future[Inference]:
        """Let the engine ask a model; it keeps to the cap of the run itself."""
        return self._step.infer(id, messages, model=model, tokens_max=tokens_max)

    async def embed(
        self,
        id: str,
        texts: Sequence[str],
        function: Callable[[list[str]], object],
        *,
        model: str | None = None,
        batch_size: int = EMBED_BATCH_DEFAULT,
    ) -> list[list[float]]:
        """One vector per text. Each batch is a step, so a failure repeats only its own."""
        if batch_size < 1:
            raise NonRetriableError(f"embed {id!r} needs batches of at least one text")
        batches = [
            list(texts[start : start + batch_size]) for start in range(0, len(texts), batch_size)
        ]
        report = self._report("embed", lambda _: Usage(model=model), batches=len(batches))
        found = await asyncio.gather(
            *(
                self._perform(
                    id if len(batches) == 1 else f"{id}:batch:{number}", function, (batch,), report
                )
                for number, batch in enumerate(batches)
            )
        )
        return [vector for vectors in found for vector in vectors]

    async def loop(
        self,
        id: str,
        turn: Callable[[list[Round]], Turn | Awaitable[Turn]],
        *,
        tools: Mapping[str, Callable[[Json], object]],
        turns_max: int,
    ) -> Looped:
        """Let a model call tools until it has its last word. Each turn and each call is a step."""
        if not 1 <= turns_max <= LOOP_TURNS_MAX:
            raise NonRetriableError(f"loop {id!r} needs 1 to {LOOP_TURNS_MAX} turns")
        rounds: list[Round] = []
        for number in range(turns_max):
            report = self._report("loop", lambda told: told.usage, iteration=number)
            said: Turn = await self._perform(
                f"{id}:iter:{number}", turn, (list(rounds),), report, returns=Turn
            )
            if not said.calls:
                return Looped(said.final, number + 1, is_final=True)
            results = await asyncio.gather(
                *(
                    self._tool(f"{id}:iter:{number}:tool:{call.id}", call, tools)
                    for call in said.calls
                )
            )
            ids = (call.id for call in said.calls)
            rounds.append(Round(said.calls, dict(zip(ids, results, strict=True))))
        return Looped(None, turns_max, is_final=False)

    def _tool(
        self, id: str, call: ToolCall, tools: Mapping[str, Callable[[Json], object]]
    ) -> Future[Any]:
        tool = tools.get(call.name)
        if tool is None:
            raise NonRetriableError(f"the model wants a tool {call.name!r} that is not there")
        return self._step.run(id, tool, call.input)

    def _perform(
        self,
        id: str,
        function: Callable[..., object],
        args: tuple[object, ...],
        report: Report,
        *,
        returns: object = None,
        retry: Retry | None = None,
        input: object = ABSENT,
    ) -> Future[Any]:
        def within(*given: object) -> object:
            require_under(self._cap, self._spent, id)
            return function(*given)

        async def within_async(*given: object) -> object:
            awaited: Any = within(*given)
            return await awaited

        body = within_async if is_async(function) else within
        return self._board.perform(id, body, args, returns, retry, input, report)

    def _report(self, kind: Kind, usage: Callable[[Any], Usage | None], **more: object) -> Report:
        def report(value: object, latency_ms: int) -> Opcode:
            journal: dict[str, object] = {"kind": kind, "latencyMs": latency_ms, **more}
            try:
                used = usage(value)
            except Exception:
                # The call was made and paid for: what it said is worth more than what it used.
                used = None
            if used is None:
                return {"ai": journal}
            told = _given(
                model=used.model,
                tokensIn=used.tokens_in,
                tokensOut=used.tokens_out,
                cost=self._cost(used),
            )
            journal |= told
            journal |= _given(cacheReadTokens=used.cached_tokens, stopReason=used.stop_reason)
            reported: Opcode = {"ai": journal}
            if told:
                reported["usage"] = told | {"latencyMs": latency_ms}
            return reported

        return report

    def _cost(self, used: Usage) -> float | None:
        if used.cost is not None or self._price is None:
            return used.cost
        try:
            return self._price(used)
        except Exception:
            return None


def require_under(cap: SpendCap | None, spent: Spent, step: str) -> None:
    """Refuse another model call to a run that has used up what it may."""
    if cap is None:
        return
    if cap.max_cost is not None and (spent.cost or 0) >= cap.max_cost:
        raise BudgetError(f"step {step!r}: the run has spent {spent.cost} of {cap.max_cost}")
    if cap.max_tokens is not None and (spent.tokens or 0) >= cap.max_tokens:
        raise BudgetError(
            f"step {step!r}: the run has used {spent.tokens} of {cap.max_tokens} tokens"
        )


# Answers of providers -----------------------------------------------------------------------------


class _Cached(msgspec.Struct, rename="camel"):
    cached_tokens: int | None = msgspec.field(default=None, name="cached_tokens")
    cache_read_tokens: int | None = None


class _Used(msgspec.Struct):
    """What the forms call the same three numbers."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Cached | None = None
    cost: float | None = None
    inputTokens: int | None = None
    outputTokens: int | None = None
    inputTokenDetails: _Cached | None = None


class _Choice(msgspec.Struct):
    finish_reason: str | None = None


class _Response(msgspec.Struct):
    modelId: str | None = None


class _Answer(msgspec.Struct):
    usage: _Used
    model: str | None = None
    stop_reason: str | None = None
    choices: list[_Choice] = []
    response: _Response | None = None
    finishReason: str | None = None


def read_usage(answer: object) -> Usage | None:
    """What a provider's answer says it used; None if it is of no form that is known."""
    if not isinstance(answer, dict):
        return None
    try:
        told = msgspec.convert(answer, _Answer)
    except msgspec.ValidationError:
        return None
    used = told.usage
    details = used.prompt_tokens_details or used.inputTokenDetails or _Cached()
    choice = told.choices[0] if told.choices else _Choice()
    return Usage(
        model=told.model or (None if told.response is None else told.response.modelId),
        tokens_in=_first(used.input_tokens, used.prompt_tokens, used.inputTokens),
        tokens_out=_first(used.output_tokens, used.completion_tokens, used.outputTokens),
        cached_tokens=_first(
            used.cache_read_input_tokens, details.cached_tokens, details.cache_read_tokens
        ),
        cost=used.cost,
        stop_reason=told.stop_reason or choice.finish_reason or told.finishReason,
    )


def _given(**fields: object) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value is not None}


def _first(*numbers: int | None) -> int | None:
    return next((number for number in numbers if number is not None), None)
