"""What the code of a workflow raises, and what it may meet."""

from datetime import datetime

from perdure.sdk.clock import now_ms
from perdure.sdk.duration import Duration, milliseconds, moment_ms


class NonRetriableError(Exception):
    """Trying again would not help: the run fails now, whatever attempts are left."""


class BudgetError(NonRetriableError):
    """The run has used up what its model calls may: no further one is made."""


class RetryAfterError(Exception):
    """Try the step again after a delay of its own (a length, or a moment), within its attempts."""

    def __init__(self, message: str, retry_after: Duration | datetime) -> None:
        super().__init__(message)
        if isinstance(retry_after, datetime):
            self.retry_after_ms = max(0, moment_ms(retry_after) - now_ms())
        else:
            self.retry_after_ms = milliseconds(retry_after)


class StepFailedError(NonRetriableError):
    """A step ended in failure for good: a child run failed, a model call was refused.

    A handler may catch it and go on. Uncaught it fails the run at once, because the step will have
    failed in every later pass, too.
    """

    def __init__(self, step: str, message: str, stack: str | None = None) -> None:
        super().__init__(message)
        self.step = step
        self.stack = stack


class UnsendableError(NonRetriableError):
    """A result or an argument that no message can carry: not JSON, or too large."""


class PollTimeoutError(NonRetriableError):
    """What `step.poll` asked for did not come in time."""


class StepNameError(NonRetriableError):
    """Two steps of one pass would have the same name, or a step was called inside another."""


class ApiError(Exception):
    """The engine refused a request of the client, or could not answer it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}" if status else message)
        self.status = status
        self.message = message


class RunFailedError(Exception):
    """A run that was waited for ended otherwise than in success."""

    def __init__(self, run_id: str, status: str, message: str) -> None:
        super().__init__(
            f"run {run_id} {status}: {message}" if message else f"run {run_id} {status}"
        )
        self.run_id = run_id
        self.status = status
        self.message = message
