"""What others ask of a run or keep of it: requests to cancel, traces, copies of its history."""

from msgspec import Struct, field


class Boundary(Struct, frozen=True, kw_only=True):
    """The call of the code at which a cancellation is delivered, as its worker names it."""

    sequence: int
    call_kind: str
    span: int = 1
    operation_sequence: int | None = None
    operation_span: int = 1


class Stopped(Struct, array_like=True):
    """An attempt that was running when its activity was cancelled."""

    attempt_id: str
    owner: str
    event_id: str
    acknowledged: bool = False


class Cancellation(Struct, kw_only=True):
    """That somebody asked the code to cancel itself, and how far that has come.

    `event_id` is set when history tells of it. `seen` is set when a worker has answered a task that
    showed it; until then nothing else enters history.
    """

    request_id: str
    root_request_id: str
    requested_at: int
    deadline_at: int
    reason: str | None = None
    context: bytes = b"null"
    event_id: str | None = None
    seen: bool = False
    # What the code had open when history told of it, and the groups that were decided by then.
    open_calls: list[int] = field(default_factory=list)
    decided_groups: list[int] = field(default_factory=list)
    first_later_call: int = 1
    delivered: Boundary | None = None
    delivered_event_id: str | None = None
    stopped: list[Stopped] = field(default_factory=list)


class TraceLink(Struct, array_like=True):
    """A trace that has something to do with the run's next task: that of a command."""

    command_id: str
    trace: bytes


class StickyWorker(Struct, array_like=True):
    """The worker that says it keeps the history of the run, and until when."""

    worker_id: str
    until: int
