"""The messages of a pass: what the engine sends, and the bytes that answer it."""

from typing import Any

import msgspec

from perdure.sdk.errors import UnsendableError
from perdure.sdk.limits import MESSAGE_BYTES_MAX

Json = Any
"""What JSON can carry, decoded: the code of a workflow knows what it expects there."""

Opcode = dict[str, object]


class StepError(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a step or a run failed."""

    message: str = ""
    stack: str | None = None


class Ref(msgspec.Struct, frozen=True):
    """Where the engine has a result that is too large for a message."""

    id: str
    sha256: str
    size: int


class Memo(msgspec.Struct, frozen=True):
    """What the engine remembers of a step: its result, its failure, or that it has begun."""

    data: Json = None
    ref: Ref | None = None
    error: StepError | None = None
    pending: bool = False


class AppEvent(msgspec.Struct, frozen=True):
    """An event as the handler sees it."""

    name: str = ""
    data: Json = None


class Fork(msgspec.Struct, frozen=True):
    """What a forked run shall try otherwise, from a step on. What it means is up to the code."""

    step: str = ""
    model: str | None = None
    prompt: str | None = None
    params: Json = None


class Spent(msgspec.Struct, frozen=True):
    """What the model calls of a run have used up."""

    cost: float | None = None
    tokens: int | None = None


class SpendCap(msgspec.Struct, frozen=True, rename="camel"):
    """What the model calls of a run may use up."""

    max_cost: float | None = None
    max_tokens: int | None = None


class Offload(msgspec.Struct, frozen=True, rename="camel"):
    """That the engine stores large results, from which size on, and how large they may be."""

    threshold_bytes: int = 65_536
    max_bytes: int = MESSAGE_BYTES_MAX
    after: int | None = None
    """Where the memo goes on that did not fit into the invoke."""


class RunContext(msgspec.Struct, frozen=True, rename="camel"):
    """What the engine tells of the run."""

    run_id: str = ""
    workflow: str | None = None
    attempt: int = 1
    app: str = ""
    runner: str | None = ""
    on_failure: bool | None = False
    error: StepError | None = None
    traceparent: str | None = None
    fork: Fork | None = None
    eval: Json = None
    spent: Spent | None = None
    cap: SpendCap | None = None
    offload: Offload | None = None
    pass_timeout_ms: float | None = None


class Invoke(msgspec.Struct, frozen=True):
    """One call of the engine: drive this run once more from the top."""

    event: AppEvent
    steps: dict[str, Memo]
    ctx: RunContext
    events: list[AppEvent] | None = None


class MemoPage(msgspec.Struct, frozen=True):
    """A part of a memo that did not fit into an invoke."""

    steps: dict[str, Memo]
    after: int | None = None


class Reply(msgspec.Struct, frozen=True):
    """The answer of a pass: a status and a body in JSON."""

    status: int
    body: bytes


_decode_invoke = msgspec.json.Decoder(Invoke).decode
encode = msgspec.json.Encoder().encode


def read_invoke(body: bytes | msgspec.Raw) -> Invoke:
    """An invoke from its JSON; a misfit is a `ValueError` that says where."""
    try:
        return _decode_invoke(body)
    except msgspec.MsgspecError as error:
        raise ValueError(f"not an invoke: {error}") from error


def refusal(status: int, message: str, logs: list[dict[str, object]] | None = None) -> Reply:
    """A reply that reports an error of the request, the handler or the runner."""
    body: dict[str, object] = {"error": message.encode("utf-8", "replace").decode()}
    return _reply(status, body if logs is None else body | {"logs": logs})


def result(data: msgspec.Raw, logs: list[dict[str, object]]) -> Reply:
    """The reply of a handler that returned."""
    return _reply(200, {"data": data, "logs": logs})


def discovery(
    opcodes: list[Opcode], logs: list[dict[str, object]], *, has_ended: bool = False
) -> Reply:
    """The reply of a handler that waits for steps, or has ended without waiting for all of them."""
    body: dict[str, object] = {"opcodes": opcodes, "logs": logs}
    return _reply(206, body | {"ended": True} if has_ended else body)


def _reply(status: int, body: dict[str, object]) -> Reply:
    # Names of events and children come from the handler as they are. A pass must not die of one.
    try:
        return Reply(status, encode(body))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        return Reply(400, encode({"error": f"this reply cannot be sent: {error}"}))


def too_large(size: int, most: int = MESSAGE_BYTES_MAX) -> str:
    """What is said instead of something that no message can carry."""
    what = "one message" if most == MESSAGE_BYTES_MAX else "one result"
    return f"{size} bytes are over the limit of {most} for {what}"


def encoded(value: object, most: int = MESSAGE_BYTES_MAX) -> msgspec.Raw:
    """A value as the JSON that will be sent."""
    try:
        data = encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UnsendableError(f"JSON cannot carry {type(value).__name__}: {error}") from error
    if len(data) > most:
        raise UnsendableError(too_large(len(data), most))
    return msgspec.Raw(data)
