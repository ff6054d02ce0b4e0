"""perdure's runner SDK: workflows in Python for any engine that speaks Durablex.

It stands alone: it imports nothing of the server, and runs in other people's processes.
"""

from perdure.sdk.client import Client, Run, Sent, StepRow, Triggered
from perdure.sdk.connect import Connection
from perdure.sdk.context import Context
from perdure.sdk.endpoint import Endpoint
from perdure.sdk.errors import (
    ApiError,
    NonRetriableError,
    PollTimeoutError,
    RetryAfterError,
    RunFailedError,
    StepFailedError,
    StepNameError,
    UnsendableError,
)
from perdure.sdk.policies import (
    Batch,
    Cap,
    Concurrency,
    Cron,
    Debounce,
    Event,
    Idempotency,
    Priority,
    RateLimit,
    Retry,
    Singleton,
    Throttle,
)
from perdure.sdk.rows import ApprovalRow, ScoreRow, SessionRow
from perdure.sdk.running import run_connected, run_server
from perdure.sdk.serving import serving
from perdure.sdk.session import Incompatible
from perdure.sdk.steps import Approval, Inference
from perdure.sdk.wire import AppEvent, Fork, StepError
from perdure.sdk.workflows import App, Workflow, workflow
from perdure.sdk.wsgi import WsgiEndpoint

__all__ = [
    "ApiError",
    "App",
    "AppEvent",
    "Approval",
    "ApprovalRow",
    "Batch",
    "Cap",
    "Client",
    "Concurrency",
    "Connection",
    "Context",
    "Cron",
    "Debounce",
    "Endpoint",
    "Event",
    "Fork",
    "Idempotency",
    "Incompatible",
    "Inference",
    "NonRetriableError",
    "PollTimeoutError",
    "Priority",
    "RateLimit",
    "Retry",
    "RetryAfterError",
    "Run",
    "RunFailedError",
    "ScoreRow",
    "Sent",
    "SessionRow",
    "Singleton",
    "StepError",
    "StepFailedError",
    "StepNameError",
    "StepRow",
    "Throttle",
    "Triggered",
    "UnsendableError",
    "Workflow",
    "WsgiEndpoint",
    "run_connected",
    "run_server",
    "serving",
    "workflow",
]
