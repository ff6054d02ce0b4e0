"""State of push runs, beside that of every run."""

from msgspec import Struct, field

from perdure.core.limits import SECOND


class StepRetry(Struct, frozen=True):
    """How often a step is tried, and how long apart. `attempts_max` counts the first try."""

    attempts_max: int = 1
    backoff: str = "fixed"
    initial_delay: int = SECOND
    max_delay: int | None = None


class Pause(Struct):
    """Why a push run is paused, and since when."""

    reason: str
    since: int
    detail: str | None = None


class Spent(Struct, frozen=True):
    """Usage of the model calls of a run. Costs are billionths; none if unknown."""

    calls: int = 0
    tokens: int = 0
    cost: int | None = None


class SpendCap(Struct, frozen=True):
    """Limits of the model calls of a run, enforced by its runner."""

    cost: int | None = None
    tokens: int | None = None


class ApprovalWait(Struct, kw_only=True):
    """The part of an approval that is kept at its step. The rest is a record."""

    approval_id: str
    tool: str
    args: bytes
    timeout: int | None = None
    escalates_to: str | None = None
    is_escalated: bool = False


class ScoreSummary(Struct):
    """The scores of one name of a run: their count, and their numeric values."""

    count: int = 0
    numbers: int = 0
    total: float = 0.0
    values: list[float] = field(default_factory=list)
    """Distinct values."""


class EvalCase(Struct, frozen=True):
    """The case of a dataset that a run executes, and its expected output."""

    set_id: str
    item_id: str
    expected: bytes | None = None


class Meter(Struct, frozen=True, kw_only=True):
    """The usage limit of a workflow within a window, and the record that counts it."""

    key: str
    window: int
    tokens: int | None = None
    cost: int | None = None
    warn_at: float | None = None
    """The percentage from which on a warning is raised."""


class Meters(Struct, kw_only=True):
    """The meters that are checked before a pass of a run."""

    budget: Meter | None = None
    pace: Meter | None = None
    is_paced: bool = False
    """Whether the throttle admitted it, or there is none."""
    is_waived: bool = False
    """Whether the budget no longer stops it."""
    cleared: int = 0
    """The last pass that the meters admitted."""
    estimated: int = 0
    """The usage charged in advance and not used yet, and since when."""
    estimated_at: int = 0
    turn: str | None = None
    """The key of its place in the waiting order."""


class Push(Struct, kw_only=True):
    """The state of a push run. The app is its queue.

    `is_fresh`: a step has become ready since the last pass was sent, and needs another pass.
    `logged`: per scope, the attempt and the line up to which logs were stored.
    """

    event_name: str
    trigger: str = "event"
    event_id: str | None = None
    pin: str = ""
    pin_look_at: int | None = None
    """When the server checks whether that runner is still connected."""
    attempt: int = 1
    errors: int = 0
    transport_failures: int = 0
    losses: int = 0
    """How many passes in a row were lost with the runner that had accepted them."""
    steps: int = 0
    current: str | None = None
    is_fresh: bool = False
    memo_bytes: int = 0
    """Bytes of the memo that are inline, with what the run itself stores."""
    result_bytes: int = 0
    """Bytes of the results of all steps, also of those that are stored externally."""
    vault: str = ""
    """The run under whose id results are stored externally, if it is another one."""
    retry: StepRetry = field(default_factory=StepRetry)
    handles_failure: bool = False
    failure_of: str | None = None
    error: bytes | None = None
    executed_by: str | None = None
    waits_out_backoffs: bool = False
    logged: dict[str, tuple[int, int]] = field(default_factory=dict)
    pause: Pause | None = None
    session: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    replay_of: str | None = None
    depth: int = 0
    singleton: str | None = None
    slot: str | None = None
    """The record that counts passes, if they are limited."""
    slot_limit: int = 0
    has_slot: bool = False
    turn: str | None = None
    """The key of its place among the runs that wait for a slot."""
    trace_id: str = ""
    span_id: str = ""
    spent: Spent | None = None
    cap: SpendCap | None = None
    pass_timeout: int | None = None
    """How long a pass may take, if its workflow sets a time-out."""
    pass_extension: int | None = None
    """How long the next pass may take, if a step in it needs longer."""
    judged: dict[str, ScoreSummary] = field(default_factory=dict)
    """Scores by name."""
    fork: bytes | None = None
    """Overrides for a run that repeats another one."""
    meters: Meters | None = None
    case: EvalCase | None = None
