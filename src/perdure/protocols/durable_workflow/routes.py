"""The route table of the Durable Workflow protocol."""

from collections.abc import Callable

from perdure.core import limits
from perdure.protocols.durable_workflow.activities import Activities
from perdure.protocols.durable_workflow.build_ids import BuildIds
from perdure.protocols.durable_workflow.cancellation import Cancellations
from perdure.protocols.durable_workflow.control import ControlPlane
from perdure.protocols.durable_workflow.discovery import Discovery
from perdure.protocols.durable_workflow.message_streams import MessageStreams
from perdure.protocols.durable_workflow.prepared_activities import PreparedActivities
from perdure.protocols.durable_workflow.queries import QueryPlane
from perdure.protocols.durable_workflow.redrive import Redrive
from perdure.protocols.durable_workflow.services import Services
from perdure.protocols.durable_workflow.sessions import SessionPlane
from perdure.protocols.durable_workflow.streams import Streams
from perdure.protocols.durable_workflow.surfaces import (
    ControlSurface,
    DiscoverySurface,
    WorkerSurface,
)
from perdure.protocols.durable_workflow.task_queues import TaskQueues
from perdure.protocols.durable_workflow.transport import (
    FETCH_PATH,
    UPLOAD_PATH,
    PayloadSurface,
    PayloadTransport,
)
from perdure.protocols.durable_workflow.updates import Updates
from perdure.protocols.durable_workflow.worker import WorkerPlane
from perdure.protocols.durable_workflow.workers import Workers
from perdure.web.routing import PUBLIC, Handler, Route, Surface

ANY_ROLE = frozenset({"worker", "operator", "admin"})
WORKER = frozenset({"worker"})
OPERATOR = frozenset({"operator", "admin"})
ADMIN = frozenset({"admin"})


def routes(
    control: ControlPlane,
    worker: WorkerPlane,
    queries: QueryPlane,
    updates: Updates,
    standalone: Activities,
    redriving: Redrive,
    services: Services,
    sessions: SessionPlane,
    message_streams: MessageStreams,
    cancelling: Cancellations,
    prepared: PreparedActivities,
    streams: Streams,
    discovery: Discovery,
    payloads: PayloadTransport,
    workers: Workers,
    build_ids: BuildIds,
    task_queues: TaskQueues,
    worker_surface: WorkerSurface,
    discovery_surface: DiscoverySurface,
) -> list[Route]:
    """Every route with its roles."""
    handler: Handler
    at = control.surfaces
    flow, run = "/api/workflows/{workflow_id}", "/api/workflows/{workflow_id}/runs/{run_id}"
    tasks, activities = "/api/worker/workflow-tasks", "/api/worker/activity-tasks"
    query, asking = "/api/worker/query-tasks/{query_task_id}", queries.surface
    validations = "/api/worker/update-validation-tasks"
    table = [
        Route("GET", "/api/health", PUBLIC, discovery_surface, discovery.health, lean=True),
        Route("GET", "/api/ready", PUBLIC, discovery_surface, discovery.ready),
        Route("GET", "/api/cluster/info", ANY_ROLE, discovery_surface, discovery.cluster_info),
        Route("POST", "/api/workflows", OPERATOR, at["start"], control.start, lean=True),
        Route("GET", "/api/workflows", OPERATOR, at["list"], control.list_workflows),
        Route("GET", flow, OPERATOR, at["describe"], control.describe),
        Route("GET", f"{flow}/runs", OPERATOR, at["list_runs"], control.list_runs),
        Route("GET", run, OPERATOR, at["describe_run"], control.describe_run),
        Route("GET", f"{run}/history", OPERATOR, at["history"], control.history),
        Route("POST", f"{run}/redrive", OPERATOR, redriving.surface, redriving.redrive),
    ]
    table += [
        Route(
            "POST",
            UPLOAD_PATH,
            ANY_ROLE,
            payloads.surface,
            payloads.upload,
            raw_bytes_max=limits.EXTERNAL_PAYLOAD_BYTES_MAX,
        ),
        Route("GET", FETCH_PATH, ANY_ROLE, payloads.surface, payloads.fetch),
    ]
    for base in (flow, run):
        table += [
            Route("POST", f"{base}/signal/{{name}}", OPERATOR, at["signal"], control.signal),
            Route("POST", f"{base}/query/{{name}}", OPERATOR, asking, queries.ask),
            Route("POST", f"{base}/update/{{name}}", OPERATOR, updates.surface, updates.update),
            Route("POST", f"{base}/cancel", OPERATOR, at["cancel"], control.cancel),
            Route("POST", f"{base}/terminate", OPERATOR, at["terminate"], control.terminate),
            Route(
                "POST",
                f"{base}/request-cancellation",
                OPERATOR,
                cancelling.surface,
                cancelling.request,
            ),
        ]
    jobs = standalone.surface
    table += [
        Route("POST", "/api/activities", OPERATOR, jobs, standalone.start),
        Route("GET", "/api/activities", OPERATOR, jobs, standalone.list_activities),
        Route("GET", "/api/activities/{activity_id}", OPERATOR, jobs, standalone.describe),
    ]
    watched = sessions.control_surface
    table += [
        Route("GET", "/api/worker-sessions", OPERATOR, watched, sessions.list_sessions),
        Route("GET", "/api/worker-sessions/{session_id}", OPERATOR, watched, sessions.show),
    ]
    table += _fleet_routes(workers, build_ids, task_queues)
    messages = f"{flow}/message-streams/{{stream_name}}/messages"
    append = message_streams.append
    table.append(Route("POST", messages, OPERATOR, message_streams.surface, append))
    for base in (flow, run):
        path = f"{base}/nexus-operations"
        table.append(Route("GET", path, OPERATOR, services.surface, services.list_of_run))
    table += _service_routes(services)
    items, stream = f"{run}/streams/{{stream_name}}/items", f"{run}/streams/{{stream_name}}"
    for method, path, name, handler in (
        ("GET", f"{run}/streams", "list_streams", streams.list_streams),
        ("GET", stream, "describe_stream", streams.describe),
        ("GET", items, "read_stream", streams.read),
        ("POST", items, "append_stream", streams.append),
        ("POST", f"{stream}/close", "close_stream", streams.close),
    ):
        table.append(Route(method, path, OPERATOR, streams.surfaces[name], handler))
    registration = "/api/worker/registrations/{worker_id}"
    table.append(Route("POST", "/api/worker/register", ANY_ROLE, worker_surface, worker.register))
    for method, path, handler in (
        ("POST", "/api/worker/heartbeat", worker.heartbeat_worker),
        ("DELETE", registration, worker.deregister),
        ("POST", f"{registration}/deregister", worker.deregister_fenced),
        ("POST", f"{tasks}/poll", worker.polls.poll_workflow_task),
        ("POST", f"{tasks}/{{task_id}}/history", worker.page_history),
        ("POST", f"{tasks}/{{task_id}}/heartbeat", worker.heartbeat_workflow_task),
        ("POST", f"{tasks}/{{task_id}}/complete", worker.complete_workflow_task),
        ("POST", f"{tasks}/{{task_id}}/fail", worker.fail_workflow_task),
        ("POST", f"{tasks}/{{task_id}}/deliver-cancellation", cancelling.deliver),
        ("POST", f"{validations}/poll", worker.polls.poll_update_validation),
        ("POST", f"{validations}/{{task_id}}/approve", updates.approve),
        ("POST", f"{validations}/{{task_id}}/reject", updates.reject),
        ("POST", f"{activities}/poll", worker.polls.poll_activity_task),
        ("POST", f"{activities}/{{task_id}}/status", worker.ask_activity),
        ("POST", f"{activities}/{{task_id}}/heartbeat", worker.heartbeat_activity),
        ("POST", f"{activities}/{{task_id}}/renew-lease", worker.renew_activity),
        ("POST", f"{activities}/{{task_id}}/complete", worker.complete_activity),
        ("POST", f"{activities}/{{task_id}}/fail", worker.fail_activity),
        ("POST", f"{activities}/{{task_id}}/acknowledge-cancellation", cancelling.acknowledge),
    ):
        table.append(Route(method, path, WORKER, worker_surface, handler, lean=True))
    local = f"{tasks}/{{task_id}}/local-activities"
    attempt = f"{local}/{{attempt_id}}"
    for path, handler, lean in (
        (f"{local}/checkpoint", prepared.checkpoint, False),
        (f"{local}/checkpoint-group", prepared.checkpoint_group, True),
        (f"{local}/prepare", prepared.prepare, True),
        (f"{local}/recover", prepared.recover, True),
        (f"{attempt}/control", prepared.control, True),
        (f"{attempt}/heartbeat", prepared.heartbeat, True),
        (f"{attempt}/outcome", prepared.outcome, True),
        (f"{attempt}/acknowledge-cancellation", prepared.acknowledge, True),
    ):
        table.append(Route("POST", path, WORKER, worker_surface, handler, lean=lean))
    for method, path, handler in (
        ("POST", "/api/worker/sessions", sessions.create),
        ("POST", "/api/worker/sessions/{session_id}/heartbeat", sessions.heartbeat),
        ("DELETE", "/api/worker/sessions/{session_id}", sessions.close),
        ("POST", "/api/worker/query-tasks/poll", queries.poll),
        ("GET", f"{query}/status", queries.show),
        ("POST", f"{query}/complete", queries.complete),
        ("POST", f"{query}/fail", queries.fail),
    ):
        table.append(Route(method, path, WORKER, worker_surface, handler))
    return table


def _fleet_routes(workers: Workers, build_ids: BuildIds, queues: TaskQueues) -> list[Route]:
    one, queue = "/api/workers/{worker_id}", "/api/task-queues/{task_queue}"
    builds, at = f"{queue}/build-ids", build_ids.surface
    return [
        Route("GET", "/api/workers", OPERATOR, workers.surface, workers.list_workers),
        Route("GET", one, OPERATOR, workers.surface, workers.describe),
        Route("DELETE", one, ADMIN, workers.surface, workers.remove),
        Route("GET", "/api/task-queues", OPERATOR, queues.surface, queues.list_queues),
        Route("GET", queue, OPERATOR, queues.surface, queues.describe),
        Route("GET", builds, OPERATOR, at, build_ids.list_build_ids),
        Route("POST", f"{builds}/drain", OPERATOR, at, build_ids.drain),
        Route("POST", f"{builds}/resume", OPERATOR, at, build_ids.resume),
        Route("POST", f"{builds}/promote", OPERATOR, at, build_ids.promote),
    ]


def _service_routes(services: Services) -> list[Route]:
    endpoints = "/api/service-endpoints"
    service = f"{endpoints}/{{endpoint}}/services"
    operation = f"{service}/{{service}}/operations"
    one = f"{operation}/{{operation}}"
    at = services.surface
    table = [Route("PUT", one, ADMIN, at, services.put_operation)]
    for collection, name in ((endpoints, "endpoint"), (service, "service")):
        table.append(Route("PUT", f"{collection}/{{{name}}}", ADMIN, at, services.put))
    for collection, item in (
        (endpoints, f"{endpoints}/{{endpoint}}"),
        (service, f"{service}/{{service}}"),
        (operation, one),
    ):
        table += [
            Route("GET", collection, OPERATOR, at, services.list_entries),
            Route("GET", item, OPERATOR, at, services.describe),
            Route("DELETE", item, ADMIN, at, services.remove),
        ]
    calls = f"{one}/service-calls"
    table += [
        Route("POST", f"{one}/execute", OPERATOR, at, services.execute),
        Route("GET", calls, OPERATOR, at, services.list_calls),
        Route("GET", f"{calls}/{{call_id}}", OPERATOR, at, services.describe_call),
        Route("POST", f"{calls}/{{call_id}}/cancel", OPERATOR, at, services.cancel_call),
    ]
    return table


def surface_of(
    control: ControlSurface,
    worker: WorkerSurface,
    discovery: DiscoverySurface,
    payloads: PayloadSurface,
) -> Callable[[bytes], Surface]:
    """The family of a path, also of one without a route."""
    known = {b"/api/health", b"/api/ready", b"/api/cluster/info"}

    def find(path: bytes) -> Surface:
        if path == b"/api/worker" or path.startswith(b"/api/worker/"):
            return worker
        if path.startswith(UPLOAD_PATH.encode()):
            return payloads
        return discovery if path in known else control

    return find
