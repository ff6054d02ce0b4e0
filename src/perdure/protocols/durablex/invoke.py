"""Passes on the wire: the body that a runner receives, and the meaning of its answer.

The same bodies travel over both transports. Payloads are spliced and cut out as bytes; only what
the rules need is decoded.
"""

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from perdure.core.external import Reference
from perdure.core.limits import (
    LOG_LINE_BYTES_MAX,
    LOG_LINES_PER_PASS_MAX,
    OFFLOAD_BYTES,
    OPCODES_PER_PASS_MAX,
    PASS_BYTES_MAX,
    SECOND,
    STEP_RESULT_BYTES_MAX,
)
from perdure.core.push.apply_pass import error_of
from perdure.core.push.command import (
    Broke,
    LogLine,
    Lost,
    PassReply,
    Progressed,
    Refused,
    Returned,
    StepCommand,
    StepError,
    Unreached,
)
from perdure.core.push.step import NULL, push_of
from perdure.core.push.usage import amount
from perdure.core.run.history import encode
from perdure.core.run.operation import PushStep, StepState
from perdure.core.run.push import EvalCase, Push, Spent
from perdure.core.run.state import Run
from perdure.protocols.durablex.json_depth import find_obstacle
from perdure.protocols.durablex.opcodes import Opcode, OpcodeError, command_of, option
from perdure.store.interface import PayloadKey, Store

_MARGIN_BYTES = 1_024
"""The bytes that an envelope and the parameters of offloading add to a pass, at most."""

LEVELS = frozenset({"debug", "info", "warn", "error"})


# The body of a pass ------------------------------------------------------------------------------


class PassBody:
    """The body of a pass. Results that must still be read from the store are references in it."""

    __slots__ = ("has_pending", "is_whole", "parts", "size")

    def __init__(self, parts: list[bytes | Reference], *, has_pending: bool) -> None:
        self.parts = parts
        self.size = sum(p.size_bytes if isinstance(p, Reference) else len(p) for p in parts)
        self.is_whole = not any(isinstance(part, Reference) for part in parts)
        self.has_pending = has_pending
        """Whether it contains steps in progress."""

    @property
    def data(self) -> bytes:
        """The bytes of a body without references to the store."""
        return b"".join(part for part in self.parts if isinstance(part, bytes))

    async def read(self, store: Store, namespace: str) -> bytes:
        """The bytes, with every stored result inserted. Raises `ResultLost` if one is missing."""
        pieces = []
        for part in self.parts:
            if isinstance(part, Reference):
                found = await store.read_payload(PayloadKey(namespace, part.reference_id))
                if found is None or len(found) != part.size_bytes:
                    raise ResultLost(f"the stored result {part.reference_id} cannot be read")
                pieces.append(found)
            else:
                pieces.append(part)
        return b"".join(pieces)


class ResultLost(Exception):
    """A stored result is missing or differs from what its run recorded."""


def does_not_fit(bytes_max: int) -> Refused:
    """The result of a pass that is not sent, because its memo exceeds the size of a message."""
    message = (
        f"what the run's steps returned is larger than {bytes_max} bytes, "
        "and the runner does not fetch results"
    )
    return Refused(error=error_of(message, MEMO_TOO_LARGE), logs=[])


MEMO_TOO_LARGE = "memo_too_large"
"""The error of a run whose memo does not fit into a message to its runner."""


def body_of(
    run: Run, *, is_impatient: bool, timeout: int, fetches_results: bool = False
) -> PassBody:
    """Make the body of a pass.

    A runner that fetches results gets references, and as much of the memo as fits; others get
    everything inline.
    """
    context = _context(run, timeout)
    if fetches_results:
        memo, has_pending, after = _referring(run, context)
        terms = {"thresholdBytes": OFFLOAD_BYTES, "maxBytes": STEP_RESULT_BYTES_MAX}
        context["offload"] = terms if after is None else {**terms, "after": after}
        parts: list[bytes | Reference] = [memo]
    else:
        parts, has_pending = _inline(run, is_impatient=is_impatient)
    head, tail = run.arguments[:-1] + b',"steps":{', b'},"ctx":%b}' % encode(context)
    if len(parts) == 1 and isinstance(parts[0], bytes):
        parts = [head + parts[0] + tail]
    else:
        parts = [head, *parts, tail]
    return PassBody(parts, has_pending=has_pending)


def _referring(run: Run, context: dict[str, object]) -> tuple[bytes, bool, int | None]:
    """A memo with references, whether any step is in progress, and where it ends if it is cut."""
    entries, has_pending = _entries(run, is_impatient=False)
    room = PASS_BYTES_MAX - _MARGIN_BYTES - len(run.arguments) - len(encode(context))
    memo = b",".join(entries)
    if len(memo) <= room:
        return memo, has_pending, None
    memo, after = _page(run, 0, room)
    return memo, has_pending, after


def _inline(run: Run, *, is_impatient: bool) -> tuple[list[bytes | Reference], bool]:
    """A memo with every result inline, and whether any step is in progress."""
    entries, has_pending = _entries(run, is_impatient=is_impatient)
    stored = [
        (step.entry, step.payload)
        for step in run.operations.values()
        if isinstance(step, PushStep) and step.payload is not None
    ]
    if not stored:
        return [b",".join(entries)], has_pending
    apart = {entry for entry, _ in stored}
    parts: list[bytes | Reference] = [b",".join([e for e in entries if e not in apart])]
    for entry, payload in stored:
        comma = b"," if parts != [b""] else b""
        parts += [comma + entry.partition(b":")[0] + b':{"data":', payload, b"}"]
    return parts, has_pending


def memo_page(run: Run, after: int) -> bytes:
    """One page of a memo after a step."""
    memo, next_after = _page(run, after, PASS_BYTES_MAX)
    return b'{"steps":{%b},"after":%b}' % (memo, encode(next_after))


def _page(run: Run, after: int, room: int) -> tuple[bytes, int | None]:
    """The entries of a memo after a step that fit, and where they end if they are cut."""
    found: list[bytes] = []
    last = after
    for sequence, step in sorted(run.operations.items()):
        assert isinstance(step, PushStep)
        entry = _entry(step, is_impatient=False)
        if sequence <= after or entry is None:
            continue
        room -= len(entry) + 1
        if room < 0 and found:
            return b",".join(found), last
        found.append(entry)
        last = sequence
    return b",".join(found), None


def _entries(run: Run, *, is_impatient: bool) -> tuple[list[bytes], bool]:
    """The entries of the steps of a run, and whether any step is in progress."""
    entries: list[bytes] = []
    has_pending = False
    for step in run.operations.values():
        assert isinstance(step, PushStep)
        if step.state is StepState.FINISHED:
            if step.entry:
                entries.append(step.entry)
        elif (entry := _entry(step, is_impatient=is_impatient)) is not None:
            has_pending = True
            entries.append(entry)
    return entries, has_pending


def _entry(step: PushStep, *, is_impatient: bool) -> bytes | None:
    """The entry of a step in the memo; none if the runner must not see it.

    A finished step is stored in the form in which it is sent. An impatient runner does not see the
    steps that the engine waits for: it asks for them again, which has no effect, and so answers.
    """
    if step.state is StepState.FINISHED:
        return step.entry or None
    if step.state is StepState.BACKOFF or (step.state is StepState.WAITING and not is_impatient):
        return encode(step.step_id) + b':{"pending":true}'
    return None


def _context(run: Run, timeout: int) -> dict[str, object]:
    push = push_of(run)
    context: dict[str, object] = {
        "runId": run.run_id,
        "workflow": run.workflow_type,
        "attempt": push.attempt,
        "app": run.queue,
        "runner": push.pin,
        "passTimeoutMs": timeout * 1000 // SECOND,
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
    """The case of an eval that the run is for."""
    view: dict[str, object] = {"setId": case.set_id, "itemId": case.item_id}
    return view if case.expected is None else {**view, "expected": Raw(case.expected)}


def _means(push: Push) -> dict[str, object]:
    """The usage of model calls of the run, and its limit."""
    spent, cap = push.spent or Spent(), push.cap
    means: dict[str, object] = {"spent": {"cost": amount(spent.cost or 0), "tokens": spent.tokens}}
    if cap is not None:
        most: dict[str, object] = {} if cap.cost is None else {"maxCost": amount(cap.cost)}
        means["cap"] = most if cap.tokens is None else {**most, "maxTokens": cap.tokens}
    return means


# The answer of a runner --------------------------------------------------------------------------


class _Body(Struct):
    data: Raw | UnsetType = UNSET
    opcodes: list[Raw] | None = None
    logs: list[Raw] | None = None
    error: Raw | UnsetType = UNSET
    ended: bool | None = None


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
    """The meaning of a runner's answer. An unreadable answer is a failed pass."""
    if status == 503:
        return Unreached(error=error_of(f"the runner takes no passes now{_shown(body)}"))
    obstacle = find_obstacle(body)
    if obstacle is not None:
        # A retry would only repeat the effects of the steps.
        return Refused(error=error_of(f"the answer of the runner: {obstacle}"), logs=[])
    try:
        answer = _body_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _broke(f"the runner answered {status} with a body that cannot be read")
    logs = _logs(answer.logs)
    if status == 200:
        data = NULL if answer.data is UNSET else bytes(answer.data)
        return Returned(result=data, logs=logs)
    if status == 206:
        if answer.opcodes is None:
            return _broke("the runner answered 206 without opcodes")
        return _progress(answer.opcodes, logs, has_ended=answer.ended is True)
    error = _error(answer.error, status)
    if 400 <= status < 500:
        return Refused(error=error, logs=logs)
    return Broke(error=error, logs=logs)


def _progress(opcodes: list[Raw], logs: list[LogLine], *, has_ended: bool) -> PassReply:
    if len(opcodes) > OPCODES_PER_PASS_MAX:
        error = error_of(f"a pass may bring {OPCODES_PER_PASS_MAX} opcodes")
        return Refused(error=error, logs=logs)
    commands: list[StepCommand] = []
    for opcode in opcodes:
        try:
            commands.append(command_of(_opcode_decoder.decode(opcode)))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return Refused(error=error_of(f"an opcode is not valid: {error}"), logs=logs)
        except OpcodeError as error:
            return Refused(error=error_of(str(error)), logs=logs)
    return Progressed(commands=commands, logs=logs, has_ended=has_ended)


def _logs(lines: list[Raw] | None) -> list[LogLine]:
    """The valid log lines; others are dropped and do not fail the pass."""
    found = []
    for line in (lines or ())[:LOG_LINES_PER_PASS_MAX]:
        if len(line) > LOG_LINE_BYTES_MAX:
            continue
        try:
            log_line = _log_decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        if log_line.level in LEVELS and log_line.index >= 0:
            fields = option(log_line.fields)
            found.append(
                LogLine(log_line.level, log_line.message, log_line.scope, log_line.index, fields)
            )
    return found


def reply_over_http(status: int, body: bytes) -> PassReply:
    """The same for an answer over HTTP, which may come from a proxy before the runner."""
    if status in (401, 403):
        return Unreached(
            error=error_of(f"it refuses the signature of the engine ({status}){_shown(body)}")
        )
    if status == 502:
        return Unreached(error=error_of(f"its proxy cannot reach it (502){_shown(body)}"))
    if status == 504:
        return Lost(error=error_of(f"its proxy timed out (504){_shown(body)}"))
    return reply_of(status, body)


def _shown(body: bytes) -> str:
    """The message of a refusal, if its body has the form of the protocol."""
    try:
        message = option(_body_decoder.decode(body).error)
        return "" if message is None else f": {_text_decoder.decode(message)[:200]}"
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""


def _error(sent: Raw | UnsetType, status: int) -> StepError:
    value = option(sent)
    if value is None:
        return error_of(f"the runner answered {status}")
    try:
        return error_of(_text_decoder.decode(value))
    except (msgspec.DecodeError, UnicodeDecodeError):
        shown = value[:200].decode(errors="replace")
        return error_of(f"the runner answered {status}: {shown}")


def _broke(message: str) -> Broke:
    return Broke(error=error_of(message), logs=[])
