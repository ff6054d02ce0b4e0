"""Parts of the run state: cancellation requests, trace links, and the sticky worker."""

from msgspec import Struct, field


class Boundary(Struct, frozen=True, kw_only=True):
    """The call of the code at which a cancellation is delivered, as named by its worker."""

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
    """A request to the code to cancel itself, and its progress.

    `event_id` is set when it is recorded in history. `seen` is set when a worker has completed a
    task with that history; until then nothing else enters history.
    """

    request_id: str
    root_request_id: str
    requested_at: int
    deadline_at: int
    reason: str | None = None
    context: bytes = b"null"
    event_id: str | None = None
    seen: bool = False
    # The operations that were open when it was recorded, and the groups that were decided.
    open_calls: list[int] = field(default_factory=list)
    decided_groups: list[int] = field(default_factory=list)
    first_later_call: int = 1
    delivered: Boundary | None = None
    delivered_event_id: str | None = None
    stopped: list[Stopped] = field(default_factory=list)


class TraceLink(Struct, array_like=True):
    """A trace that the run's next task links to: that of a command."""

    command_id: str
    trace: bytes


class StickyWorker(Struct, array_like=True):
    """The worker that has the history of the run in its cache, and until when."""

    worker_id: str
    until: int
