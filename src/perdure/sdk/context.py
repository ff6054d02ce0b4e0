"""`ctx`: what a handler knows of its run, and what it can do."""

from perdure.sdk.ai import Ai, Price
from perdure.sdk.asserts import Asserts
from perdure.sdk.log import Lines, Log
from perdure.sdk.steps import Board, Score, Step, Webhook
from perdure.sdk.wire import AppEvent, Fork, Invoke, Json, SpendCap, Spent, StepError


class Context:
    """Given to a handler anew in every pass."""

    __slots__ = (
        "ai",
        "app",
        "asserts",
        "attempt",
        "cap",
        "error",
        "eval",
        "event",
        "events",
        "fork",
        "log",
        "run_id",
        "runner",
        "score",
        "spent",
        "step",
        "traceparent",
        "webhook",
        "workflow",
    )

    def __init__(
        self,
        invoke: Invoke,
        board: Board,
        lines: Lines,
        workflow: str,
        price: Price | None = None,
    ) -> None:
        told = invoke.ctx
        self.event: AppEvent = invoke.event
        """The event that started the run."""
        self.events: list[AppEvent] = invoke.events or [invoke.event]
        """All events of a batch; otherwise the one."""
        self.run_id: str = told.run_id
        self.workflow: str = workflow
        self.attempt: int = told.attempt
        """1, and one more for every pass that follows a failed step."""
        self.app: str = told.app
        self.runner: str = told.runner or ""
        """The runner that this run is pinned to; empty if to none."""
        self.error: StepError | None = told.error
        """In a failure handler: why the run failed."""
        self.traceparent: str | None = told.traceparent
        self.fork: Fork | None = told.fork
        """In a forked run: what to try otherwise."""
        self.eval: Json = told.eval
        """In an eval: `setId`, `itemId` and, if there is one, `expected`."""
        self.spent: Spent = told.spent or Spent()
        """What the model calls of the run have used up, in passes before this one."""
        self.cap: SpendCap | None = told.cap
        self.step = Step(board)
        self.ai = Ai(board, self.step, self.spent, self.cap, price)
        self.webhook = Webhook(board)
        self.score = Score(board)
        self.asserts = Asserts(board, told.eval)
        self.log = Log(lines)
