"""The cases of the catalogue, played with the release that runs this process."""

from tests.sdk.cases import (
    cancellation,
    client,
    freight,
    local,
    messages,
    output,
    parallel,
    plain,
    queries,
    redriving,
    selections,
    services,
    sessions,
    standalone,
    tracing,
    updates,
    waits,
)
from tests.sdk.cases.registry import DECLARED, Declared

__all__ = [
    "DECLARED",
    "Declared",
    "cancellation",
    "client",
    "freight",
    "local",
    "messages",
    "output",
    "parallel",
    "plain",
    "queries",
    "redriving",
    "selections",
    "services",
    "sessions",
    "standalone",
    "tracing",
    "updates",
    "waits",
]
