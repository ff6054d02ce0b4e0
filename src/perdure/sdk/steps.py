"""`ctx.step`, `ctx.webhook` and `ctx.score`: every durable operation of a workflow.

A call takes its name at once, before anything is awaited, so that branches keep their names
whatever order they run in. What it returns may be awaited, gathered or left for later.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, ParamSpec, Protocol, TypeVar, overload

import msgspec

from perdure.sdk.duration import Duration, Moment, milliseconds, moment_ms
from perdure.sdk.errors import NonRetriableError, PollTimeoutError
from perdure.sdk.limits import POLL_CHECKS_MAX, POLL_GAP_MS_MIN
from perdure.sdk.match import Match, meant, required
from perdure.sdk.policies import Retry
from perdure.sdk.wire import Json, Opcode, encoded

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")

Future = asyncio.Future
_TIMEOUT_MS_MAX = 604_800_000
ABSENT = msgspec.UNSET
"""Not given, where None would be a value."""


class Approval(msgspec.Struct, frozen=True, rename="camel"):
    """What somebody decided: the arguments may have been edited."""

    status: Literal["approved", "denied"] = "denied"
    args: Json = None
    decided_by: str | None = None

    @property
    def is_approved(self) -> bool:
        """Whether the answer was yes."""
        return self.status == "approved"


class Inference(msgspec.Struct, frozen=True):
    """What a model said."""

    text: str = ""
    model: str = ""


Report = Callable[[object, int], Opcode]
"""What is told of a result, and of how many milliseconds it took, besides the result itself."""


class Board(Protocol):
    """What the calls need of their pass."""

    called: list[str]
    """The ids of the steps that the code came to in this pass, in their order."""

    def perform(
        self,
        wanted: str,
        function: Callable[..., object],
        args: tuple[object, ...],
        returns: object,
        retry: Retry | None,
        input: object,
        report: Report | None = None,
        timeout_ms: int | None = None,
    ) -> Future[Json]:
        """A step with a body, which runs here if the engine does not know its result."""
        ...

    def ask(
        self,
        wanted: str,
        opcode: Callable[[], Opcode],
        read: Callable[[Json], object] | None = None,
    ) -> Future[Json]:
        """A step that the engine does."""
        ...


class Step:
    """`ctx.step`."""

    __slots__ = ("_board",)

    def __init__(self, board: Board) -> None:
        self._board = board

    @overload
    def run(
        self,
        id: str,
        function: Callable[..., object],
        /,
        *args: object,
        returns: type[R],
        retry: Retry | None = None,
        timeout: Duration | None = None,
        input: object = ABSENT,
    ) -> Future[R]: ...
    @overload
    def run(
        self,
        id: str,
        function: Callable[..., Awaitable[T]],
        /,
        *args: object,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        input: object = ABSENT,
    ) -> Future[T]: ...
    @overload
    def run(
        self,
        id: str,
        function: Callable[..., T],
        /,
        *args: object,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        input: object = ABSENT,
    ) -> Future[T]: ...
    def run(
        self,
        id: str,
        function: Callable[..., object],
        /,
        *args: object,
        returns: object = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        input: object = ABSENT,
    ) -> Future[Json]:
        """Do something once: `function(*args)`, plain or async, whose result is remembered.

        A plain function runs in a thread, with the context variables of the caller; it has no
        event loop there. Of a plain function that returns an awaitable, that is awaited.

        After `timeout`, counted from the begin of the function, this try of the step has failed.
        Async code is cancelled; a thread cannot be stopped, so a plain function runs on beside a
        next try, and its late result is dropped. Over HTTP the timeout also has the engine wait
        for as long, if that is longer than it waits for a pass.

        The result comes back as JSON carries it; with `returns`, a class, it is made into that.
        `retry` replaces the workflow's policy, `input` is only shown to people.
        """
        if not callable(function):
            if inspect.iscoroutine(function):
                function.close()
            raise NonRetriableError(f"step {id!r} needs a function to call, not {function!r}")

        timeout_ms = _timeout_ms(id, timeout)
        return self._board.perform(id, function, args, returns, retry, input, timeout_ms=timeout_ms)

    def sleep(self, id: str, duration: Duration) -> Future[None]:
        """Let time pass; the runner need not be there meanwhile."""
        return self._board.ask(
            id, lambda: {"op": "Sleep", "sleepMs": milliseconds(duration)}, _nothing
        )

    def sleep_until(self, id: str, moment: Moment) -> Future[None]:
        """Go on at this moment, or at once if it is past."""
        return self._board.ask(
            id, lambda: {"op": "SleepUntil", "sleepUntilMs": moment_ms(moment)}, _nothing
        )

    @overload
    async def poll(
        self,
        id: str,
        probe: Callable[[], Awaitable[T | None]],
        *,
        every: Duration,
        timeout: Duration,  # noqa: ASYNC109
        until: Callable[[T], bool] | None = None,
    ) -> T: ...
    @overload
    async def poll(
        self,
        id: str,
        probe: Callable[[], T | None],
        *,
        every: Duration,
        timeout: Duration,  # noqa: ASYNC109
        until: Callable[[T], bool] | None = None,
    ) -> T: ...
    async def poll(
        self,
        id: str,
        probe: Callable[[], object],
        *,
        every: Duration,
        timeout: Duration,  # noqa: ASYNC109 - of steps, over many passes
        until: Callable[[Json], bool] | None = None,
    ) -> Json:
        """Ask again and again, durably, until the answer is there (not None), or fits `until`."""
        gap_ms, timeout_ms = milliseconds(every), milliseconds(timeout)
        if gap_ms < POLL_GAP_MS_MIN or timeout_ms <= 0:
            raise NonRetriableError(
                f"poll {id!r} needs a timeout, and {POLL_GAP_MS_MIN} ms between its checks"
            )
        for number in range(min(-(-timeout_ms // gap_ms), POLL_CHECKS_MAX)):
            answer: Json = await self.run(f"{id}:probe:{number}", probe)
            if until(answer) if until is not None else answer is not None:
                return answer
            await self.sleep(f"{id}:gap:{number}", every)
        raise PollTimeoutError(f"poll {id!r} had no answer within {timeout}")

    def wait_for_event(
        self,
        id: str,
        event: str,
        *,
        timeout: Duration,
        match: Match | None = None,
        where: str | None = None,
    ) -> Future[Json]:
        """The data of the next event of this name that is meant; None after the timeout.

        `match` names members of the data and the values that they must have, as
        `{"data.order.id": order_id}`; nothing in a value has a meaning of its own. `where` is a
        filter in the Common Expression Language. It reads `event`, and as `trigger` the event that
        started this run; never put a value into its text. With both, both must hold.
        """
        wanted = None if match is None else required(id, match)
        return self._board.ask(
            id,
            lambda: _compact(
                op="WaitForEvent",
                eventName=event,
                timeoutMs=milliseconds(timeout),
                match=wanted,
                eventIf=where,
            ),
            None if wanted is None else lambda data: meant(id, wanted, data),
        )

    def run_workflow(
        self,
        id: str,
        name: str,
        data: object = ABSENT,
        *,
        app: str | None = None,
        runner: str | None = None,
    ) -> Future[Json]:
        """The result of a run of another workflow; if that fails, a `StepFailedError`."""
        return self._board.ask(
            id,
            lambda: (
                _compact(op="RunWorkflow", childName=name, childApp=app, childRunner=runner)
                | _carried("childData", data)
            ),
        )

    def emit(
        self,
        id: str,
        event: str,
        data: object = ABSENT,
        *,
        app: str | None = None,
        dedupe_id: str | None = None,
    ) -> Future[None]:
        """Send an event, once."""
        return self._board.ask(
            id,
            lambda: (
                _compact(op="Emit", eventName=event, targetApp=app, dedupeId=dedupe_id)
                | _carried("data", data)
            ),
            _nothing,
        )

    def skip(self, id: str, reason: str | None = None) -> Future[None]:
        """Show that a step was left out, and why."""
        return self._board.ask(id, lambda: _compact(op="Skip", data=reason), _nothing)

    def approval(
        self,
        id: str,
        tool: str,
        args: object = ABSENT,
        *,
        risk: Literal["low", "medium", "high"] | None = None,
        summary: str | None = None,
        policy: str | None = None,
        context: str | None = None,
        escalates_to: str | None = None,
        timeout: Duration | None = None,
    ) -> Future[Approval]:
        """Wait for somebody to say yes or no to the use of a tool."""
        if not tool.strip():
            raise ValueError(f"approval {id!r} must name a tool")
        return self._board.ask(
            id,
            lambda: (
                _compact(
                    op="Approval",
                    tool=tool,
                    risk=risk,
                    summary=summary,
                    policy=policy,
                    context=context,
                    escalatesTo=escalates_to,
                    timeoutMs=None if timeout is None else milliseconds(timeout),
                )
                | _carried("data", args)
            ),
            lambda data: msgspec.convert(data if isinstance(data, dict) else {}, Approval),
        )

    def infer(
        self,
        id: str,
        messages: Sequence[object],
        *,
        model: str | None = None,
        tokens_max: int | None = None,
    ) -> Future[Inference]:
        """Let the engine ask a model."""
        return self._board.ask(
            id,
            lambda: {
                "op": "Infer",
                "data": encoded(_compact(model=model, messages=messages, maxTokens=tokens_max)),
            },
            lambda data: msgspec.convert(data if isinstance(data, dict) else {}, Inference),
        )


class Webhook:
    """`ctx.webhook`."""

    __slots__ = ("_board",)

    def __init__(self, board: Board) -> None:
        self._board = board

    def send(self, id: str, url: str, data: object = ABSENT) -> Future[None]:
        """Have the engine deliver this to a URL, with its own retries."""
        if not url.strip():
            raise ValueError(f"webhook {id!r} needs a URL")
        return self._board.ask(
            id, lambda: {"op": "Webhook", "webhookUrl": url} | _carried("data", data), _nothing
        )


class Score:
    """`ctx.score`."""

    __slots__ = ("_board",)

    def __init__(self, board: Board) -> None:
        self._board = board

    def __call__(
        self,
        name: str,
        value: float | bool | str,
        *,
        comment: str | None = None,
        run_id: str | None = None,
        source: Literal["code", "llm-judge"] | None = None,
    ) -> Future[None]:
        """Judge this run, or another: a number, yes or no, or a word."""
        if not name.strip():
            raise ValueError("a score needs a name")
        told = _compact(comment=comment, runId=run_id, source=source)
        return judged_step(self._board, {"name": name} | judged(value) | told, None)


def judged(value: float | bool | str) -> Opcode:
    """A judgement on the wire: a number, yes or no, or a word."""
    if isinstance(value, bool):
        return {"value": int(value), "dataType": "boolean"}
    if isinstance(value, str):
        return {"stringValue": value, "dataType": "categorical"}
    return {"value": value, "dataType": "numeric"}


def judged_step(board: Board, told: Opcode, answer: T) -> Future[T]:
    """A step that judges, after which the code goes on with an answer."""
    return board.ask(
        f"score:{told['name']}",
        lambda: {"op": "Score", "data": encoded(told)},
        lambda _: answer,
    )


def _timeout_ms(id: str, timeout: Duration | None) -> int | None:
    if timeout is None:
        return None
    try:
        told = milliseconds(timeout)
    except ValueError as error:
        raise NonRetriableError(f"step {id!r}: {error}") from error
    if not 0 < told <= _TIMEOUT_MS_MAX:
        raise NonRetriableError(f"step {id!r} needs a timeout of more than 0, at most 7 days")
    return told


def _compact(**fields: object) -> Opcode:
    """What was given: an option that is left out is left out on the wire."""
    return {name: value for name, value in fields.items() if value is not None}


def _carried(name: str, data: object) -> Opcode:
    return {} if data is ABSENT else {name: encoded(data)}


def _nothing(_: Json) -> None:
    return None
