"""perdure's runner SDK: workflows in Python for any engine that speaks Durablex.

It stands alone: it imports nothing of the server, and runs in other people's processes.
"""

from perdure.sdk.ai import Looped, Round, ToolCall, Turn, Usage
from perdure.sdk.client import Client, Run, Sent, StepRow, Triggered
from perdure.sdk.connect import Connection
from perdure.sdk.context import Context
from perdure.sdk.datasets import DatasetRow, EvalRow, Evaluation, ItemRow
from perdure.sdk.endpoint import Endpoint
from perdure.sdk.errors import (
    ApiError,
    BudgetError,
    NonRetriableError,
    PollTimeoutError,
    RetryAfterError,
    RunFailedError,
    StepFailedError,
    StepNameError,
    UnsendableError,
)
from perdure.sdk.http_server import serving
from perdure.sdk.link import Incompatible
from perdure.sdk.policies import (
    Batch,
    Budget,
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
    TokenThrottle,
)
from perdure.sdk.program import run_connected, run_server
from perdure.sdk.steps import Approval, Inference
from perdure.sdk.views import ApprovalRow, ScoreRow, SessionRow
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
    "Budget",
    "BudgetError",
    "Cap",
    "Client",
    "Concurrency",
    "Connection",
    "Context",
    "Cron",
    "DatasetRow",
    "Debounce",
    "Endpoint",
    "EvalRow",
    "Evaluation",
    "Event",
    "Fork",
    "Idempotency",
    "Incompatible",
    "Inference",
    "ItemRow",
    "Looped",
    "NonRetriableError",
    "PollTimeoutError",
    "Priority",
    "RateLimit",
    "Retry",
    "RetryAfterError",
    "Round",
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
    "TokenThrottle",
    "ToolCall",
    "Triggered",
    "Turn",
    "UnsendableError",
    "Usage",
    "Workflow",
    "WsgiEndpoint",
    "run_connected",
    "run_server",
    "serving",
    "workflow",
]
