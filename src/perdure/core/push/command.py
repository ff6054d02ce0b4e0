"""What a runner asks for when it answers a pass. Payloads are encoded JSON that nobody opens."""

from typing import TypeAlias

from msgspec import Struct

from perdure.core.push.score import Judgement
from perdure.core.push.usage import Usage
from perdure.core.run.push import StepRetry


class StepError(Struct, frozen=True):
    """Why a step or a run failed: a message for people, and all of it as it was told."""

    message: str
    told: bytes


class AtStep(Struct, frozen=True, kw_only=True):
    """What every command has: the step that it is, by its hashed id and by its name."""

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
    """The usage as it is counted; none when it was not told, or makes no sense."""


class SkipStep(AtStep, frozen=True, kw_only=True):
    """The code passes a step over."""

    reason: bytes | None = None


class StartSleep(AtStep, frozen=True, kw_only=True):
    """Sleep for a while, from now on."""

    delay: int


class SleepUntil(AtStep, frozen=True, kw_only=True):
    """Sleep until an instant, which may be over."""

    until: int


class AwaitEvent(AtStep, frozen=True, kw_only=True):
    """Wait for an event by name, perhaps only for one that a filter lets through.

    `match` is a JSON object: paths into the data of the event, and the values that must be there.
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
    """Send an event, as if it came from outside."""

    event_name: str
    data: bytes | None = None
    target_app: str | None = None
    dedupe_id: str | None = None


class SendWebhook(AtStep, frozen=True, kw_only=True):
    """Post something to an address, unsigned."""

    url: str
    data: bytes | None = None


class AskModel(AtStep, frozen=True, kw_only=True):
    """Let the engine ask a model. `messages` is an encoded list."""

    messages: bytes
    model: str | None = None
    tokens_max: int | None = None


class AskApproval(AtStep, frozen=True, kw_only=True):
    """Wait until somebody says yes or no to the use of a tool."""

    tool: str
    args: bytes | None = None
    risk: str = "medium"
    summary: str | None = None
    policy: str | None = None
    context: str | None = None
    escalates_to: str | None = None
    timeout: int | None = None


class GiveScore(AtStep, frozen=True, kw_only=True):
    """Judge this run, or another one."""

    judgement: Judgement
    run_id: str | None = None


class ExtendPass(AtStep, frozen=True, kw_only=True):
    """The body of a step needs longer than a pass may take: the next one may take as long."""

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
    """What the code logged. `index` counts the lines of a scope within one pass."""

    level: str
    message: str
    scope: str
    index: int
    fields: bytes | None = None


class Progressed(Struct, frozen=True, kw_only=True):
    """The code stands at steps that it found."""

    commands: list[StepCommand]
    logs: list[LogLine]
    has_ended: bool = False
    """Whether it does not: it came to its end beside them, and has to be asked what it said."""


class Returned(Struct, frozen=True, kw_only=True):
    """The code has come to its end."""

    result: bytes
    logs: list[LogLine]


class Refused(Struct, frozen=True, kw_only=True):
    """The runner will never do this, or nobody can send it to one: the run fails."""

    error: StepError
    logs: list[LogLine]


class Broke(Struct, frozen=True, kw_only=True):
    """The pass failed on its way, or the code raised. `is_charged` if that is a try used up."""

    error: StepError
    logs: list[LogLine]
    is_charged: bool = True


class Unreached(Struct, frozen=True, kw_only=True):
    """No runner took the pass: nothing of it was done. The endpoint failed, not the run."""

    error: StepError
    logs: list[LogLine] = []


class Lost(Struct, frozen=True, kw_only=True):
    """A runner took the pass and went away before it answered. The endpoint failed, not the run.

    How often that may happen in a row is bounded all the same: a pass may be what kills it.
    """

    error: StepError
    logs: list[LogLine] = []


PassReply: TypeAlias = Progressed | Returned | Refused | Broke | Unreached | Lost
