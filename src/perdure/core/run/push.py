"""What a run has because runners are invoked for it: the state of push runs."""

from msgspec import Struct, field

from perdure.core.limits import SECOND


class StepRetry(Struct, frozen=True):
    """How often a step is tried, and how long apart. `attempts_max` counts the first try."""

    attempts_max: int = 1
    backoff: str = "fixed"
    initial_delay: int = SECOND
    max_delay: int | None = None


class Pause(Struct):
    """Why a push run stands still, and since when."""

    reason: str
    since: int
    detail: str | None = None


class Spent(Struct, frozen=True):
    """What the model calls of a run used up. Costs are billionths; none is not known."""

    calls: int = 0
    tokens: int = 0
    cost: int | None = None


class SpendCap(Struct, frozen=True):
    """What the model calls of a run may use up; its runner keeps to it."""

    cost: int | None = None
    tokens: int | None = None


class ApprovalWait(Struct, kw_only=True):
    """What a step has that waits for somebody's yes or no. The rest is kept apart."""

    approval_id: str
    tool: str
    args: bytes
    timeout: int | None = None
    escalates_to: str | None = None
    is_escalated: bool = False


class Judged(Struct):
    """The scores of one name that a run has: how many, and the numbers among them."""

    count: int = 0
    numbers: int = 0
    total: float = 0.0
    values: list[float] = field(default_factory=list)
    """Each number once."""


class EvalCase(Struct, frozen=True):
    """The case of a dataset that a run is for, and what is expected of it."""

    set_id: str
    item_id: str
    expected: bytes | None = None


class Meter(Struct, frozen=True, kw_only=True):
    """What a workflow may use up within a window, and the record in which that is counted."""

    key: str
    window: int
    tokens: int | None = None
    cost: int | None = None
    warn_at: float | None = None
    """From which percentage on people want to know."""


class Meters(Struct, kw_only=True):
    """What is asked before passes of a run."""

    budget: Meter | None = None
    pace: Meter | None = None
    is_paced: bool = False
    """Whether the throttle let it start, or never had a say."""
    is_waived: bool = False
    """Whether the budget stops it no more."""
    cleared: int = 0
    """The last pass that may go."""
    estimated: int = 0
    """What it was charged with beforehand and has not used yet, and as of when."""
    estimated_at: int = 0
    turn: str | None = None
    """Where it waits."""


class Push(Struct, kw_only=True):
    """What a run has because runners are invoked for it. The app is its queue.

    `is_fresh` says that a step has become ready since the last pass was sent, which does not know
    of it. `logged` says per scope up to which line of which attempt logs were kept.
    """

    event_name: str
    trigger: str = "event"
    event_id: str | None = None
    pin: str = ""
    pin_look_at: int | None = None
    """When it is asked whether that runner is still there."""
    attempt: int = 1
    errors: int = 0
    transport_failures: int = 0
    losses: int = 0
    """How often in a row a pass was lost with the runner that had taken it."""
    steps: int = 0
    current: str | None = None
    is_fresh: bool = False
    memo_bytes: int = 0
    """How much of the memo stays inline, with what the run itself stores."""
    result_bytes: int = 0
    """What the results of all steps come to, also those that are stored apart."""
    vault: str = ""
    """The run under whose id stored results are addressed, if it is another one."""
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
    """Where passes are counted, if there is a limit to them."""
    slot_limit: int = 0
    has_slot: bool = False
    turn: str | None = None
    """Where it waits for a slot."""
    trace_id: str = ""
    span_id: str = ""
    spent: Spent | None = None
    cap: SpendCap | None = None
    pass_timeout: int | None = None
    """How long a pass may take, if its workflow says."""
    pass_extension: int | None = None
    """How long the next one may, if a step in it needs longer."""
    judged: dict[str, Judged] = field(default_factory=dict)
    """What scores there are, by name."""
    fork: bytes | None = None
    """What shall be tried otherwise than in the run that this one begins again."""
    meters: Meters | None = None
    case: EvalCase | None = None
