"""The route table of the protocol."""

from perdure.core.limits import STEP_RESULT_BYTES_MAX
from perdure.protocols.durablex.catalogue import CatalogueReader
from perdure.protocols.durablex.connect import Connect
from perdure.protocols.durablex.control import RunControl
from perdure.protocols.durablex.events import Events
from perdure.protocols.durablex.flow import FlowControl
from perdure.protocols.durablex.live_streams import LiveStreams
from perdure.protocols.durablex.run_statistics import RunStatistics
from perdure.protocols.durablex.runs import Runs
from perdure.protocols.durablex.serve import Serve
from perdure.protocols.durablex.step_results import (
    FETCH_PATH,
    MEMO_PATH,
    UPLOAD_PATH,
    StepResults,
)
from perdure.protocols.durablex.surface import DurablexSurface
from perdure.web.routing import PUBLIC, Route

READER = frozenset({"read", "full", "worker", "operator", "admin"})
"""The scopes of routes that read."""
FULL = frozenset({"full", "operator", "admin"})
"""The scopes of routes that change something."""
SENDER = FULL | {"worker"}
"""The scopes of routes that send events or start runs."""
RUNNER = frozenset({"full", "worker"})
"""The scopes of routes of runners."""


def routes(
    surface: DurablexSurface,
    connect: Connect,
    serve: Serve,
    events: Events,
    runs: Runs,
    catalogue: CatalogueReader,
    control: RunControl,
    streaming: LiveStreams,
    figures: RunStatistics,
    flow: FlowControl,
    results: StepResults,
) -> list[Route]:
    """Every route, with its roles."""
    run = "/runs/{run_id}"
    return [
        Route("POST", "/register", RUNNER, surface, serve.register),
        Route("POST", "/deregister", RUNNER, surface, serve.deregister),
        Route("GET", "/connect", RUNNER, surface, connect.connect, lean=True, upgrades=True),
        Route("POST", "/events", SENDER, surface, events.ingest, lean=True),
        Route("GET", "/events", READER, surface, events.find),
        Route("GET", "/events/{event_id}", READER, surface, events.show),
        Route("GET", "/runs", READER, surface, runs.find),
        Route("GET", "/runs/stream", READER, surface, streaming.all_runs),
        Route("GET", "/runs/stats", READER, surface, figures.stats),
        Route("GET", "/runs/timeseries", READER, surface, figures.timeseries),
        Route("GET", f"{run}/stream", READER, surface, streaming.run),
        Route("GET", "/events/stream", READER, surface, streaming.events),
        Route("GET", run, READER, surface, runs.show),
        Route("GET", f"{run}/steps", READER, surface, runs.steps),
        Route("GET", MEMO_PATH, READER, surface, results.memo),
        Route(
            "POST",
            UPLOAD_PATH,
            RUNNER,
            surface,
            results.upload,
            raw_bytes_max=STEP_RESULT_BYTES_MAX,
        ),
        Route("GET", FETCH_PATH, READER, surface, results.fetch),
        Route("GET", f"{run}/logs", READER, surface, runs.logs),
        Route("POST", f"{run}/cancel", FULL, surface, control.cancel),
        Route("POST", f"{run}/pause", FULL, surface, control.pause),
        Route("POST", f"{run}/resume", FULL, surface, control.resume),
        Route("POST", f"{run}/replay", FULL, surface, control.replay),
        Route("POST", f"{run}/retry-from-step", FULL, surface, control.retry_from_step),
        Route("POST", f"{run}/fork", FULL, surface, control.fork),
        Route("POST", "/runs/bulk-replay", FULL, surface, control.bulk_replay),
        Route("GET", "/control-actions", READER, surface, control.actions),
        Route("POST", "/workflows/{app}/{name}/trigger", SENDER, surface, flow.trigger),
        Route("GET", "/flow-state", READER, surface, flow.flow_state),
        Route("GET", "/workflows", READER, surface, catalogue.workflows),
        Route("GET", "/apps", READER, surface, catalogue.apps),
        Route("GET", "/runners", READER, surface, catalogue.runners),
        Route("GET", "/healthz", PUBLIC, surface, catalogue.health, lean=True),
        Route("GET", "/readyz", PUBLIC, surface, catalogue.ready),
    ]
