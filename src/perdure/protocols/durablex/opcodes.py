"""Opcodes: the wire form of the commands of a runner."""

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from perdure.core.external import is_sha256
from perdure.core.intake.expression import compile_filter
from perdure.core.intake.match import read_match
from perdure.core.intake.trigger import is_reserved
from perdure.core.limits import (
    AI_COST_PER_CALL_MAX,
    AI_TOKENS_PER_CALL_MAX,
    APPROVAL_ARGUMENT_BYTES_MAX,
    APPROVAL_TEXT_LENGTH_MAX,
    EVENT_DATA_BYTES_MAX,
    NAME_LENGTH_MAX,
    PASS_TIMEOUT_MAX,
    SECOND,
    STEP_ATTEMPTS_MAX,
    STEP_DELAY_MAX,
    STEP_ID_LENGTH_MAX,
    STEP_NAME_LENGTH_MAX,
    STEP_RESULT_BYTES_MAX,
    URL_LENGTH_MAX,
)
from perdure.core.maps import EmptyList, Map, members_of, structure_of, whole_body
from perdure.core.push.command import (
    AskApproval,
    AskModel,
    AwaitEvent,
    CallWorkflow,
    EmitEvent,
    ExtendPass,
    GiveScore,
    ReportStep,
    SendWebhook,
    SkipStep,
    SleepUntil,
    StartSleep,
    StepCommand,
    StepError,
    StoredResult,
)
from perdure.core.push.score import DataType, Source, judgement_of
from perdure.core.push.step import NULL
from perdure.core.push.usage import Usage, billionths
from perdure.core.run.push import StepRetry

MILLISECOND = SECOND // 1000
BACKOFFS = frozenset({"fixed", "linear", "exponential"})
RISKS = frozenset({"low", "medium", "high"})


class OpcodeError(Exception):
    """An opcode is not valid; the run fails with this message."""


class RetryTold(Struct, rename="camel"):
    """A retry policy beside a step's result."""

    max_attempts: int | None = None
    backoff: str | None = None
    initial_delay_ms: float | None = None
    max_delay_ms: float | None = None


class StoredTold(Struct):
    """A result that the runner has uploaded."""

    sha256: str
    size: int


class Opcode(Struct, rename="camel"):
    """The members of all opcodes; each opcode uses some."""

    op: str
    id: str
    name: str
    data: Raw | UnsetType = UNSET
    data_ref: StoredTold | None = None
    error: Raw | UnsetType = UNSET
    retriable: bool | None = None
    retry_after_ms: float | None = None
    retry: RetryTold | EmptyList | None = None
    input: Raw | UnsetType = UNSET
    ai: Raw | UnsetType = UNSET
    usage: Raw | UnsetType = UNSET
    sleep_ms: float | None = None
    sleep_until_ms: float | None = None
    event_name: str | None = None
    event_if: str | None = None
    match: Raw | UnsetType = UNSET
    timeout_ms: float | None = None
    child_name: str | None = None
    child_app: str | None = None
    child_runner: str | None = None
    child_data: Raw | UnsetType = UNSET
    target_app: str | None = None
    dedupe_id: str | None = None
    webhook_url: str | None = None
    tool: str | None = None
    risk: str | None = None
    summary: str | None = None
    policy: str | None = None
    context: str | None = None
    escalates_to: str | None = None


class _Error(Struct):
    message: str


class ScoreTold(Struct, rename="camel"):
    """A score, as runners and people send it."""

    name: str
    value: float | bool | None = None
    string_value: str | None = None
    data_type: DataType | None = None
    source: Source | None = None
    comment: str | None = None
    run_id: str | None = None


Tokens = Annotated[float, Meta(ge=0, le=AI_TOKENS_PER_CALL_MAX)]


class UsageTold(Struct, rename="camel"):
    """The usage of a model call, as its runner reports it."""

    model: str | None = None
    tokens_in: Tokens | None = None
    tokens_out: Tokens | None = None
    cost: Annotated[float, Meta(ge=0, le=AI_COST_PER_CALL_MAX)] | None = None
    latency_ms: Annotated[float, Meta(ge=0, le=2**53)] | None = None


class ModelRequest(Struct, rename="camel"):
    """A request to a model. Its messages are passed on unchanged."""

    messages: Annotated[list[Map[Any]], Meta(min_length=1)]
    model: str | None = None
    max_tokens: Annotated[int, Meta(ge=1, le=AI_TOKENS_PER_CALL_MAX)] | None = None


class _Journal(Struct, rename="camel"):
    cache_read_tokens: int | None = None


_error_decoder = msgspec.json.Decoder(_Error)
_score_decoder = msgspec.json.Decoder(ScoreTold)
_usage_decoder = msgspec.json.Decoder(UsageTold)
_request_decoder = msgspec.json.Decoder(ModelRequest)
_journal_decoder = msgspec.json.Decoder(_Journal)


def command_of(opcode: Opcode) -> StepCommand:
    """The command of an opcode. Raises `OpcodeError`."""
    if not opcode.id or len(opcode.id) > STEP_ID_LENGTH_MAX:
        raise OpcodeError(f"opcode {opcode.op} has no usable step id")
    if len(opcode.name) > STEP_NAME_LENGTH_MAX:
        raise OpcodeError(f"a step name has more than {STEP_NAME_LENGTH_MAX} characters")
    spell = _SPELLINGS.get(opcode.op)
    if spell is None:
        raise OpcodeError(
            f"the runner asks for {opcode.op[:64]}, an opcode that this engine does not support"
        )
    return spell(opcode)


def _step_run(opcode: Opcode) -> StepCommand:
    error = option(opcode.error)
    wait = opcode.retry_after_ms
    return ReportStep(
        step_id=opcode.id,
        name=opcode.name,
        result=_bytes(opcode.data),
        stored=None if opcode.data_ref is None or error is not None else _stored(opcode.data_ref),
        error=None if error is None else _error(error),
        is_retriable=opcode.retriable is not False,
        retry_after=None if wait is None else _delay(wait),
        retry=_retry(opcode.retry),
        input=_bytes(opcode.input),
        ai=option(opcode.ai),
        usage=option(opcode.usage),
        metered=_usage(opcode.usage, opcode.ai),
    )


def _stored(reference: StoredTold) -> StoredResult:
    if not is_sha256(reference.sha256) or not 0 < reference.size <= STEP_RESULT_BYTES_MAX:
        raise OpcodeError(
            f"dataRef needs sha256, 64 lower-case hexadecimal digits, and size, from 1 to "
            f"{STEP_RESULT_BYTES_MAX}"
        )
    return StoredResult(reference.size, reference.sha256)


def _usage(sent: Raw | UnsetType, ai: Raw | UnsetType) -> Usage | None:
    if sent is UNSET:
        return None
    try:
        usage = _usage_decoder.decode(whole_body(bytes(sent)))
    except msgspec.DecodeError:
        return None
    tokens = (usage.tokens_in or 0) + (usage.tokens_out or 0)
    return Usage(
        model=usage.model and usage.model[:NAME_LENGTH_MAX],
        tokens=int(tokens),
        cost=None if usage.cost is None else billionths(usage.cost),
        latency_ms=None if usage.latency_ms is None else int(usage.latency_ms),
        cached_tokens=_cached(ai),
    )


def _cached(ai: Raw | UnsetType) -> int | None:
    """The cached tokens that the journal of a call reports. The journal may have any form."""
    try:
        return None if ai is UNSET else _journal_decoder.decode(ai).cache_read_tokens
    except msgspec.DecodeError:
        return None


def _error(sent: bytes) -> StepError:
    try:
        return StepError(_error_decoder.decode(sent).message, sent)
    except msgspec.DecodeError:
        raise OpcodeError("the error of a step needs a message") from None


def _retry(sent: RetryTold | EmptyList | None) -> StepRetry | None:
    policy = structure_of(sent, RetryTold)
    if policy is None:
        return None
    attempts_max = 1 if policy.max_attempts is None else policy.max_attempts
    backoff = "fixed" if policy.backoff is None else policy.backoff
    initial = 1_000 if policy.initial_delay_ms is None else policy.initial_delay_ms
    if backoff not in BACKOFFS or not 1 <= attempts_max <= STEP_ATTEMPTS_MAX:
        raise OpcodeError("the retry policy of a step is not valid")
    longest = policy.max_delay_ms
    return StepRetry(
        attempts_max=attempts_max,
        backoff=backoff,
        initial_delay=_delay(initial),
        max_delay=None if longest is None else _delay(longest),
    )


def _skip(opcode: Opcode) -> StepCommand:
    return SkipStep(step_id=opcode.id, name=opcode.name, reason=option(opcode.data))


def _extend(opcode: Opcode) -> StepCommand:
    timeout = _delay(opcode.timeout_ms or 0)
    if not 0 < timeout <= PASS_TIMEOUT_MAX:
        raise OpcodeError(
            f"ExtendPass needs timeoutMs, at most {PASS_TIMEOUT_MAX // MILLISECOND} of them"
        )
    return ExtendPass(step_id=opcode.id, name=opcode.name, timeout=timeout)


def _sleep(opcode: Opcode) -> StepCommand:
    if opcode.sleep_ms is None:
        raise OpcodeError("Sleep needs sleepMs")
    return StartSleep(step_id=opcode.id, name=opcode.name, delay=_delay(opcode.sleep_ms))


def _sleep_until(opcode: Opcode) -> StepCommand:
    until = opcode.sleep_until_ms
    if until is None or not abs(until) < 2**62 // MILLISECOND:
        raise OpcodeError("SleepUntil needs sleepUntilMs")
    return SleepUntil(step_id=opcode.id, name=opcode.name, until=int(until * MILLISECOND))


def _wait(opcode: Opcode) -> StepCommand:
    event_name = _name(opcode.event_name, "WaitForEvent needs eventName")
    timeout = opcode.timeout_ms
    if opcode.event_if is not None:
        try:
            compile_filter(opcode.event_if, of_wait=True)
        except ValueError as error:
            raise OpcodeError(f"the filter of step {opcode.name} {error}") from None
    match = _bytes(opcode.match)
    if match == NULL:
        match = None
    if match is not None:
        try:
            read_match(match)
        except ValueError as error:
            raise OpcodeError(f"the match of step {opcode.name} {error}") from None
    return AwaitEvent(
        step_id=opcode.id,
        name=opcode.name,
        event_name=event_name,
        timeout=None if timeout is None else _delay(timeout),
        filter=opcode.event_if,
        match=match,
    )


def _run_workflow(opcode: Opcode) -> StepCommand:
    return CallWorkflow(
        step_id=opcode.id,
        name=opcode.name,
        workflow=_name(opcode.child_name, "RunWorkflow needs childName"),
        app=opcode.child_app or None,
        pin=opcode.child_runner or None,
        data=_bytes(opcode.child_data),
    )


def _emit(opcode: Opcode) -> StepCommand:
    event_name = _name(opcode.event_name, "Emit needs eventName")
    if is_reserved(event_name):
        raise OpcodeError(f"only the engine raises {event_name}")
    if opcode.dedupe_id is not None:
        _name(opcode.dedupe_id, "Emit needs a dedupeId of some length")
    return EmitEvent(
        step_id=opcode.id,
        name=opcode.name,
        event_name=event_name,
        data=_bytes(opcode.data),
        target_app=opcode.target_app or None,
        dedupe_id=opcode.dedupe_id,
    )


def _webhook(opcode: Opcode) -> StepCommand:
    url = opcode.webhook_url
    if url is None or not url.strip() or len(url) > URL_LENGTH_MAX:
        raise OpcodeError(f"Webhook needs a webhookUrl of at most {URL_LENGTH_MAX} characters")
    data = _bytes(opcode.data)
    if data is not None and len(data) > EVENT_DATA_BYTES_MAX:
        raise OpcodeError(f"a webhook has more than {EVENT_DATA_BYTES_MAX} bytes")
    return SendWebhook(step_id=opcode.id, name=opcode.name, url=url, data=data)


def _infer(opcode: Opcode) -> StepCommand:
    if opcode.data is UNSET or len(opcode.data) > EVENT_DATA_BYTES_MAX:
        raise OpcodeError(f"Infer needs data of at most {EVENT_DATA_BYTES_MAX} bytes")
    try:
        request = _request_decoder.decode(opcode.data)
    except msgspec.DecodeError as error:
        raise OpcodeError(f"the data of Infer is not valid: {error}") from None
    if request.model is not None:
        _name(request.model, "Infer needs a model with a name, or none")
    return AskModel(
        step_id=opcode.id,
        name=opcode.name,
        messages=msgspec.json.encode([members_of(message) for message in request.messages]),
        model=request.model,
        tokens_max=request.max_tokens,
    )


def _approval(opcode: Opcode) -> StepCommand:
    args = _bytes(opcode.data)
    if args is not None and len(args) > APPROVAL_ARGUMENT_BYTES_MAX:
        raise OpcodeError(f"an approval has more than {APPROVAL_ARGUMENT_BYTES_MAX} bytes")
    if opcode.risk is not None and opcode.risk not in RISKS:
        raise OpcodeError("the risk of an approval is low, medium or high")
    texts = (opcode.summary, opcode.policy, opcode.context, opcode.escalates_to)
    if any(text is not None and len(text) > APPROVAL_TEXT_LENGTH_MAX for text in texts):
        raise OpcodeError(f"an approval has texts of {APPROVAL_TEXT_LENGTH_MAX} characters at most")
    return AskApproval(
        step_id=opcode.id,
        name=opcode.name,
        tool=_name(opcode.tool, "Approval needs a tool"),
        args=args,
        risk=opcode.risk or "medium",
        summary=opcode.summary,
        policy=opcode.policy,
        context=opcode.context,
        escalates_to=opcode.escalates_to or None,
        timeout=None if opcode.timeout_ms is None else _delay(opcode.timeout_ms),
    )


def _score(opcode: Opcode) -> StepCommand:
    if opcode.data is UNSET:
        raise OpcodeError("Score needs data")
    try:
        sent = _score_decoder.decode(opcode.data)
        if sent.source == "human":
            raise ValueError("the code of a workflow is not human")
        judgement = judgement_of(
            name=sent.name,
            value=sent.value,
            text=sent.string_value,
            data_type=sent.data_type,
            source=sent.source or "code",
            comment=sent.comment,
        )
    except (msgspec.DecodeError, ValueError) as error:
        raise OpcodeError(f"a score is not valid: {error}") from None
    return GiveScore(
        step_id=opcode.id, name=opcode.name, judgement=judgement, run_id=sent.run_id or None
    )


_SPELLINGS: dict[str, Callable[[Opcode], StepCommand]] = {
    "StepRun": _step_run,
    "ExtendPass": _extend,
    "Skip": _skip,
    "Sleep": _sleep,
    "SleepUntil": _sleep_until,
    "WaitForEvent": _wait,
    "RunWorkflow": _run_workflow,
    "Emit": _emit,
    "Webhook": _webhook,
    "Infer": _infer,
    "Approval": _approval,
    "Score": _score,
}


def _name(name: str | None, why: str) -> str:
    if name is None or not name.strip():
        raise OpcodeError(why)
    if len(name) > NAME_LENGTH_MAX:
        raise OpcodeError(f"a name has more than {NAME_LENGTH_MAX} characters")
    return name


def option(member: Raw | UnsetType) -> bytes | None:
    """A member for which null means absent, unlike for values, where null is a value."""
    data = _bytes(member)
    return None if data == b"null" else data


def _delay(milliseconds: float) -> int:
    """A length of time; one that is over already is none."""
    if not milliseconds > 0:
        return 0
    return int(min(milliseconds * MILLISECOND, STEP_DELAY_MAX))


def _bytes(member: Raw | UnsetType) -> bytes | None:
    return None if member is UNSET else bytes(member)
