"""Commands in a runner's reply to a pass. Payloads are encoded JSON that stays undecoded."""

from typing import TypeAlias

from msgspec import Struct

from perdure.core.push.score import Judgement
from perdure.core.push.usage import Usage
from perdure.core.run.push import StepRetry


class StepError(Struct, frozen=True):
    """Why a step or a run failed: a message for people, and the whole error as encoded JSON."""

    message: str
    encoded: bytes


class AtStep(Struct, frozen=True, kw_only=True):
    """What every command has: the hashed id and the name of its step."""

    step_id: str
    name: str


class StoredResult(Struct, frozen=True):
    """A result that was uploaded before it was reported."""

    size_bytes: int
    sha256: str


class ReportStep(AtStep, frozen=True, kw_only=True):
    """The runner ran a step. It has a result or an error."""

    result: bytes | None = None
    stored: StoredResult | None = None
    """The result, if the runner uploaded it."""
    error: StepError | None = None
    is_retriable: bool = True
    retry_after: int | None = None
    retry: StepRetry | None = None
    input: bytes | None = None
    ai: bytes | None = None
    usage: bytes | None = None
    metered: Usage | None = None
    """The usage as it is counted; none when it was not reported or is not valid."""


class SkipStep(AtStep, frozen=True, kw_only=True):
    """The code skips a step."""

    reason: bytes | None = None


class StartSleep(AtStep, frozen=True, kw_only=True):
    """Sleep for a duration that starts now."""

    delay: int


class SleepUntil(AtStep, frozen=True, kw_only=True):
    """Sleep until an instant, which may be past."""

    until: int


class AwaitEvent(AtStep, frozen=True, kw_only=True):
    """Wait for an event by name, optionally only for one that matches a filter.

    `match` is a JSON object: paths into the data of the event, and the values required there.
    """

    event_name: str
    timeout: int | None = None
    filter: str | None = None
    match: bytes | None = None


class CallWorkflow(AtStep, frozen=True, kw_only=True):
    """Start a child and wait for its result."""

    workflow: str
    app: str | None = None
    pin: str | None = None
    data: bytes | None = None


class EmitEvent(AtStep, frozen=True, kw_only=True):
    """Send an event, as an external client would."""

    event_name: str
    data: bytes | None = None
    target_app: str | None = None
    dedupe_id: str | None = None


class SendWebhook(AtStep, frozen=True, kw_only=True):
    """Post a request to a URL, unsigned."""

    url: str
    data: bytes | None = None


class AskModel(AtStep, frozen=True, kw_only=True):
    """Let the engine call a model. `messages` is an encoded list."""

    messages: bytes
    model: str | None = None
    tokens_max: int | None = None


class AskApproval(AtStep, frozen=True, kw_only=True):
    """Wait for people to approve or deny the use of a tool."""

    tool: str
    args: bytes | None = None
    risk: str = "medium"
    summary: str | None = None
    policy: str | None = None
    context: str | None = None
    escalates_to: str | None = None
    timeout: int | None = None


class GiveScore(AtStep, frozen=True, kw_only=True):
    """Score this run, or another one."""

    judgement: Judgement
    run_id: str | None = None


class ExtendPass(AtStep, frozen=True, kw_only=True):
    """The body of a step needs longer than the pass timeout: raise that of the next pass."""

    timeout: int


StepCommand: TypeAlias = (
    ReportStep
    | ExtendPass
    | SkipStep
    | StartSleep
    | SleepUntil
    | AwaitEvent
    | CallWorkflow
    | EmitEvent
    | SendWebhook
    | AskModel
    | AskApproval
    | GiveScore
)


class LogLine(Struct, frozen=True):
    """A log line of the code. `index` counts the lines of a scope within one pass."""

    level: str
    message: str
    scope: str
    index: int
    fields: bytes | None = None


class Progressed(Struct, frozen=True, kw_only=True):
    """The code is blocked at the reported steps."""

    commands: list[StepCommand]
    logs: list[LogLine]
    has_ended: bool = False
    """Whether the code has ended besides reporting steps; the next pass fetches its result."""


class Returned(Struct, frozen=True, kw_only=True):
    """The code has returned a result."""

    result: bytes
    logs: list[LogLine]


class Refused(Struct, frozen=True, kw_only=True):
    """The runner rejects the pass for good, or it cannot be sent to any: the run fails."""

    error: StepError
    logs: list[LogLine]


class Broke(Struct, frozen=True, kw_only=True):
    """The pass failed in transit, or the code raised. `is_charged` if it counts as an attempt."""

    error: StepError
    logs: list[LogLine]
    is_charged: bool = True


class Unreached(Struct, frozen=True, kw_only=True):
    """No runner accepted the pass: nothing of it ran. The endpoint failed, not the run."""

    error: StepError
    logs: list[LogLine] = []


class Lost(Struct, frozen=True, kw_only=True):
    """A runner accepted the pass and disconnected before it answered.

    The endpoint failed, not the run. Losses in a row are bounded all the same: the pass itself may
    crash its runners.
    """

    error: StepError
    logs: list[LogLine] = []


PassReply: TypeAlias = Progressed | Returned | Refused | Broke | Unreached | Lost
