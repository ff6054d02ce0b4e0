"""Passes on the wire: what a runner is told, and what its answer means.

The same bodies travel over both transports. Payloads are spliced and cut out as bytes; only what
the rules need is decoded.
"""

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from perdure.core.limits import (
    LOG_LINE_BYTES_MAX,
    LOG_LINES_PER_PASS_MAX,
    OPCODES_PER_PASS_MAX,
)
from perdure.core.maps import whole_body
from perdure.core.push.command import (
    Broke,
    LogLine,
    PassReply,
    Progressed,
    Refused,
    Returned,
    StepCommand,
    StepError,
)
from perdure.core.push.passing import error_of
from perdure.core.push.step import NULL, push_of
from perdure.core.push.usage import amount
from perdure.core.run.history import encode
from perdure.core.run.operation import PushStep, StepState
from perdure.core.run.push import EvalCase, Push, Spent
from perdure.core.run.state import Run
from perdure.protocols.durablex.depth import TOO_DEEP, is_too_deep
from perdure.protocols.durablex.opcodes import Opcode, OpcodeError, command_of

LEVELS = frozenset({"debug", "info", "warn", "error"})


# What a runner is told ---------------------------------------------------------------------------


def body_of(run: Run, *, is_impatient: bool) -> tuple[bytes, bool]:
    """The body of a pass, and whether it tells of steps that can only be waited for."""
    memo, has_pending = memo_of(run, is_impatient=is_impatient)
    body = b'%b,"steps":{%b},"ctx":%b}' % (run.arguments[:-1], memo, encode(_context(run)))
    return body, has_pending


def memo_of(run: Run, *, is_impatient: bool) -> tuple[bytes, bool]:
    """What is known of the steps of a run, and whether any of it is under way.

    Finished steps are kept in the form in which they are sent. An impatient runner is not told
    what the engine waits for: it asks for that again, is not heard, and has answered.
    """
    entries = []
    has_pending = False
    for step in run.operations.values():
        assert isinstance(step, PushStep)
        if step.state is StepState.FINISHED:
            if step.entry:
                entries.append(step.entry)
        elif step.state is StepState.BACKOFF or (
            step.state is StepState.WAITING and not is_impatient
        ):
            has_pending = True
            entries.append(encode(step.step_id) + b':{"pending":true}')
    return b",".join(entries), has_pending


def _context(run: Run) -> dict[str, object]:
    push = push_of(run)
    context: dict[str, object] = {
        "runId": run.run_id,
        "workflow": run.workflow_type,
        "attempt": push.attempt,
        "app": run.queue,
        "runner": push.pin,
        "traceparent": f"00-{push.trace_id}-{push.span_id}-01",
    }
    if push.spent is not None or push.cap is not None:
        context |= _means(push)
    if push.failure_of is not None:
        context["onFailure"] = True
        context["error"] = Raw(push.error or b'{"message":""}')
    if push.case is not None:
        context["eval"] = _case(push.case)
    if push.fork is not None:
        context["fork"] = Raw(push.fork)
    return context


def _case(case: EvalCase) -> dict[str, object]:
    """The case that the run is for."""
    told: dict[str, object] = {"setId": case.set_id, "itemId": case.item_id}
    return told if case.expected is None else {**told, "expected": Raw(case.expected)}


def _means(push: Push) -> dict[str, object]:
    """What model calls of the run used up, and what they may."""
    spent, cap = push.spent or Spent(), push.cap
    means: dict[str, object] = {"spent": {"cost": amount(spent.cost or 0), "tokens": spent.tokens}}
    if cap is not None:
        most: dict[str, object] = {} if cap.cost is None else {"maxCost": amount(cap.cost)}
        means["cap"] = most if cap.tokens is None else {**most, "maxTokens": cap.tokens}
    return means


# What its answer means ---------------------------------------------------------------------------


class _Body(Struct):
    data: Raw | UnsetType = UNSET
    opcodes: list[Raw] | None = None
    logs: list[Raw] | None = None
    error: Raw | UnsetType = UNSET


class _Log(Struct):
    level: str
    message: str
    scope: str
    index: int
    fields: Raw | UnsetType = UNSET


_body_decoder = msgspec.json.Decoder(_Body)
_log_decoder = msgspec.json.Decoder(_Log)
_opcode_decoder = msgspec.json.Decoder(Opcode)
_text_decoder = msgspec.json.Decoder(str)


def reply_of(status: int, body: bytes) -> PassReply:
    """What a runner's answer asks for. One that nobody can read is a pass that broke."""
    if is_too_deep(body):
        # Asking again would only repeat what the steps did.
        return Refused(error=error_of(f"the answer of the runner: {TOO_DEEP}"), logs=[])
    try:
        told = _body_decoder.decode(whole_body(body))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _broke(f"the runner answered {status} with a body that makes no sense")
    logs = _logs(told.logs)
    if status == 200:
        data = NULL if told.data is UNSET else bytes(told.data)
        return Returned(result=data, logs=logs)
    if status == 206:
        if told.opcodes is None:
            return _broke("the runner answered 206 without opcodes")
        return _progress(told.opcodes, logs)
    error = _error(told.error, status)
    if 400 <= status < 500:
        return Refused(error=error, logs=logs)
    return Broke(error=error, logs=logs)


def _progress(opcodes: list[Raw], logs: list[LogLine]) -> PassReply:
    if len(opcodes) > OPCODES_PER_PASS_MAX:
        error = error_of(f"a pass may bring {OPCODES_PER_PASS_MAX} opcodes")
        return Refused(error=error, logs=logs)
    commands: list[StepCommand] = []
    for opcode in opcodes:
        try:
            commands.append(command_of(_opcode_decoder.decode(opcode)))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return Refused(error=error_of(f"an opcode makes no sense: {error}"), logs=logs)
        except OpcodeError as error:
            return Refused(error=error_of(str(error)), logs=logs)
    return Progressed(commands=commands, logs=logs)


def _logs(lines: list[Raw] | None) -> list[LogLine]:
    """The lines that can be read; the others never fail a pass."""
    found = []
    for line in (lines or ())[:LOG_LINES_PER_PASS_MAX]:
        if len(line) > LOG_LINE_BYTES_MAX:
            continue
        try:
            told = _log_decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        if told.level in LEVELS and told.index >= 0:
            fields = None if told.fields is UNSET else bytes(told.fields)
            found.append(LogLine(told.level, told.message, told.scope, told.index, fields))
    return found


def _error(told: Raw | UnsetType, status: int) -> StepError:
    if told is UNSET:
        return error_of(f"the runner answered {status}")
    try:
        return error_of(_text_decoder.decode(told))
    except (msgspec.DecodeError, UnicodeDecodeError):
        shown = bytes(told)[:200].decode(errors="replace")
        return error_of(f"the runner answered {status}: {shown}")


def _broke(message: str) -> Broke:
    return Broke(error=error_of(message), logs=[])
