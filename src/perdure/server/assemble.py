"""The parts list: the one place that builds the objects of a server and connects them."""

import logging
from collections.abc import Callable, Coroutine
from typing import Any

from perdure import __version__
from perdure.clock import Clock, FollowingClock, SystemClock
from perdure.cluster.local_sockets import Family, LocalSockets
from perdure.cluster.node import ClusterNode
from perdure.core.limits import RESPONSE_COMPRESSION_BYTES_MIN
from perdure.core.run.state import TASK_KINDS, Dialect, Run
from perdure.dispatch.connected_runners import ConnectedRunners
from perdure.dispatch.deadlines import DeadlineLoop
from perdure.dispatch.parked_polls import ParkedPolls
from perdure.dispatch.polls import Polling
from perdure.dispatch.query_broker import QueryBroker
from perdure.dispatch.query_routing import QueryRouter
from perdure.dispatch.query_table import QueryRules
from perdure.dispatch.run_watchers import RunWatchers
from perdure.dispatch.runner_invoker import RunnerInvoker
from perdure.dispatch.session_polls import SessionPolls
from perdure.dispatch.store_watch import StoreWatch
from perdure.dispatch.stream_readers import StreamReaders
from perdure.dispatch.task_waiters import TaskWaiters
from perdure.dispatch.throttled_queues import ThrottledQueues
from perdure.dispatch.turns import Turns
from perdure.dispatch.update_waiters import UpdateWaiters
from perdure.engine.admission import FLOW, FlowDue
from perdure.engine.beat import Engine
from perdure.engine.cache import RunCache
from perdure.engine.events import REMAINDER, SEEN, ExpireDedupeId, WakeRemaining
from perdure.engine.leasing import Leasing
from perdure.engine.manual_start import STARTED
from perdure.engine.payloads import PAYLOADS, ExpirePayload
from perdure.engine.quotas import LEDGER
from perdure.engine.registration import RUNNER, RunnerDue
from perdure.engine.run_control import BEGUN
from perdure.engine.schedule_ticks import ScheduleDue
from perdure.engine.schedules import SCHEDULE
from perdure.engine.service_calls import CALL, KEY, ExpireServiceCall
from perdure.engine.sessions import SESSION
from perdure.engine.streams import STREAMS, ExpireStream
from perdure.engine.usage_limits import METER, MeterDue
from perdure.features.feature import Kernel
from perdure.features.retention.routes import retention_view
from perdure.identity import IdSource
from perdure.protocols.durable_workflow.activities import Activities
from perdure.protocols.durable_workflow.build_ids import BuildIds
from perdure.protocols.durable_workflow.cancellation import Cancellations
from perdure.protocols.durable_workflow.control import ControlPlane
from perdure.protocols.durable_workflow.discovery import Discovery
from perdure.protocols.durable_workflow.manifests import cluster_info, server_capabilities
from perdure.protocols.durable_workflow.message_streams import MessageStreams
from perdure.protocols.durable_workflow.payload_completion import PayloadCompletion
from perdure.protocols.durable_workflow.prepared_activities import PreparedActivities
from perdure.protocols.durable_workflow.queries import QueryPlane
from perdure.protocols.durable_workflow.redrive import Redrive
from perdure.protocols.durable_workflow.refusals import Refusals
from perdure.protocols.durable_workflow.routes import routes, surface_of
from perdure.protocols.durable_workflow.services import Services
from perdure.protocols.durable_workflow.sessions import SessionPlane
from perdure.protocols.durable_workflow.streams import Streams
from perdure.protocols.durable_workflow.surfaces import (
    ControlSurface,
    DiscoverySurface,
    Namespaces,
    WorkerSurface,
    translate,
)
from perdure.protocols.durable_workflow.task_queues import TaskQueues
from perdure.protocols.durable_workflow.transport import (
    PayloadSurface,
    PayloadTransport,
    storage_policy,
)
from perdure.protocols.durable_workflow.updates import Updates
from perdure.protocols.durable_workflow.worker import WorkerPlane
from perdure.protocols.durable_workflow.workers import Workers
from perdure.protocols.durablex import routes as durablex
from perdure.protocols.durablex.catalogue import CatalogueReader
from perdure.protocols.durablex.connect import Connect
from perdure.protocols.durablex.control import RunControl
from perdure.protocols.durablex.events import Events
from perdure.protocols.durablex.flow import FlowControl
from perdure.protocols.durablex.live_streams import LiveStreams
from perdure.protocols.durablex.run_statistics import RunStatistics
from perdure.protocols.durablex.runs import Runs
from perdure.protocols.durablex.serve import Serve
from perdure.protocols.durablex.step_results import StepResults
from perdure.protocols.durablex.surface import DurablexSurface
from perdure.server.features import build_features, make_expiry, make_registry
from perdure.server.runner_guard import make_runner_guard
from perdure.server.settings import Settings, is_postgres
from perdure.server.stores import make_hint_wire, make_parcel_wire, make_store
from perdure.store.interface import Store, shared
from perdure.web.app import Application
from perdure.web.auth import (
    FULL,
    READ,
    Authenticator,
    NoAuthentication,
    SignatureAuthentication,
    TokenAuthentication,
)
from perdure.web.local_access import LocalAccess
from perdure.web.message import Principal
from perdure.web.routing import Router, Surface

log = logging.getLogger(__name__)


class Server:
    """All parts of a server except its listening sockets."""

    def __init__(
        self,
        settings: Settings,
        *,
        store: Store | None = None,
        clock: Clock | None = None,
        family: Family | None = None,
    ) -> None:
        if clock is None:
            clock = FollowingClock(SystemClock()) if is_postgres(settings.store) else SystemClock()
        ids = IdSource(clock.now)
        node_id = ids.ulid()
        bounds = settings.bounds
        self.store = make_store(settings, node_id=node_id, clock=clock) if store is None else store
        self.parked_polls = ParkedPolls(parked_max=settings.polls_max)
        self.runners = ConnectedRunners()
        task_waiters = TaskWaiters(self.parked_polls, {TASK_KINDS[Dialect.PUSH]: self.runners})
        self.watchers = RunWatchers()
        self.update_waiters = UpdateWaiters()
        self.stream_readers = StreamReaders()
        self.deadlines = DeadlineLoop(clock)
        self.cache = RunCache()
        leasing = Leasing(
            workflow_timeout=settings.workflow_lease_timeout,
            activity_timeout=settings.activity_lease_timeout,
            allowances=settings.allowances,
        )
        self.cluster: ClusterNode | None = None
        if (shared_store := shared(self.store)) is not None:
            self.cluster = ClusterNode(
                node_id=node_id,
                clock=clock,
                store=shared_store,
                wire=make_hint_wire(settings),
                parcels=make_parcel_wire(settings, node_id=node_id),
                parked_polls=self.parked_polls,
                task_waiters=task_waiters,
                watchers=self.watchers,
                update_waiters=self.update_waiters,
                siblings=None if family is None else LocalSockets(family, node_id),
            )
        self.engine = Engine(
            store=self.store,
            clock=clock,
            ids=ids,
            matcher=task_waiters,
            leasing=leasing,
            cache=self.cache,
            registry=make_registry(),
            on_change=self._notify_waiters,
            on_record=lambda key: self.stream_readers.changed(key.target),
            on_due=self.deadlines.arm,
            announcer=None if self.cluster is None else self.cluster.hints,
            bounds=bounds,
        )
        self.throttled_queues = ThrottledQueues(self.parked_polls)
        self.engine.shut = self.throttled_queues.queues
        self.polling = Polling(
            self.engine, self.parked_polls, leasing, task_waiters, self.throttled_queues
        )
        self.runners.connect(self.polling.look)
        self.invoker = RunnerInvoker(
            self.engine, clock, self.runners, timeout=settings.pass_timeout
        )
        self.sessions = SessionPolls(self.engine, self.parked_polls, leasing)
        self.deadlines.on_record(SESSION.name, self.sessions.on_due)
        self.deadlines.on_record(
            LEDGER.name, self.throttled_queues.on_due, self.throttled_queues.minute_passed
        )
        self.throttled_queues.add_listener(self.sessions.quotas_renewed)
        self.deadlines.on_record(STREAMS.name, ExpireStream)
        remote_queries = None if self.cluster is None else self.cluster.post
        self.query_broker = QueryBroker(
            clock,
            ids,
            query_rules(settings),
            on_due=self.deadlines.arm,
            node="" if remote_queries is None else node_id,
            remote=remote_queries,
        )
        self.turns = Turns(clock)
        self.parked_polls.connect_turns(self.turns)
        self.query_broker.connect_turns(self.turns)
        self.parked_polls.on_registration_ended(self.query_broker.registration_ended)
        self.query_broker.draining = self.engine.rollouts.draining
        self.parked_polls.on_drained(self.query_broker.drained)
        self.deadlines.also(self.query_broker.pass_time)
        self.store_watch = StoreWatch(self.store, clock, self._release_polls)
        query_router = QueryRouter(self.engine, self.query_broker)
        if self.cluster is not None:
            self.cluster.connect(self.engine, self.polling)
            self.cluster.connect_query_broker(self.query_broker)
            self.cluster.connect_stream_readers(self.stream_readers)
            query_router.connect(self.engine.refresh_workers)

        self.namespaces = Namespaces(settings.default_namespace)
        capabilities = server_capabilities(
            poll_timeout=settings.poll_timeout,
            compression=settings.compression,
            external_payloads=settings.external_payloads,
            cadence=settings.cadence,
            bounds=bounds,
        )
        control_surface = ControlSurface(self.namespaces)
        refusals = Refusals()
        worker_surface = WorkerSurface(self.namespaces, lambda: capabilities, clock, refusals)
        discovery_surface = DiscoverySurface(self.namespaces)
        control = ControlPlane(
            self.engine,
            clock,
            ids,
            self.watchers,
            control_surface,
            poll_timeout=settings.poll_timeout,
            can_query=query_router.can_ask,
            bounds=bounds,
            refusals=refusals,
        )
        queries = QueryPlane(
            self.engine,
            query_router,
            self.query_broker,
            clock,
            control_surface.of("query"),
            worker_surface,
            poll_timeout=settings.poll_timeout,
            bounds=bounds,
        )
        worker = WorkerPlane(
            self.engine,
            self.polling,
            leasing,
            clock,
            ids,
            worker_surface,
            poll_timeout=settings.poll_timeout,
            cadence=settings.cadence,
            bounds=bounds,
        )
        updates = Updates(
            self.engine,
            self.update_waiters,
            control_surface,
            worker_surface,
            wait_timeout=settings.update_wait_timeout,
            bounds=bounds,
        )
        sessions = SessionPlane(self.engine, self.sessions, clock, worker_surface, control_surface)
        message_streams = MessageStreams(self.engine, control_surface, bounds)
        streams = Streams(self.engine, self.stream_readers, control_surface)
        info = cluster_info(
            server_id=settings.server_id,
            version=__version__,
            default_namespace=settings.default_namespace,
            capabilities=capabilities,
            body_bytes_max=settings.body_bytes_max,
            bounds=bounds,
        )
        # A payload too large for a body must be uploaded, whatever the threshold is.
        policy = storage_policy(min(settings.external_payload_threshold, bounds.payload_bytes_max))
        self.discovery = discovery = Discovery(
            self.store_watch,
            clock,
            self.namespaces,
            discovery_surface,
            info,
            policy if settings.external_payloads else None,
            retention_view(settings.history_retention),
            settings.auth_driver,
        )
        payload_surface = PayloadSurface(self.namespaces)
        payloads = PayloadTransport(
            self.engine,
            clock,
            payload_surface,
            PayloadCompletion(self.engine, self.query_broker, clock),
            is_open=settings.external_payloads,
        )
        self.deadlines.on_record(PAYLOADS.name, ExpirePayload)
        push_surface = DurablexSurface(settings.default_namespace)
        self.connect = Connect(self.engine, self.invoker, self.runners, clock, ids, node_id=node_id)
        self.serve = Serve(
            self.engine,
            self.invoker,
            self.runners,
            clock,
            push_surface,
            node_id=node_id,
            signing_key=settings.signing_key,
            guard=make_runner_guard(settings),
            warns_of_addresses=settings.auth_driver != "none",
            namespaces=self.namespaces.known,
        )
        if self.cluster is not None:
            self.serve.on_served = self.cluster.hints.served
            self.cluster.hints.on_runners = self.serve.refresh_soon
        self.catalogue = CatalogueReader(
            self.engine, push_surface, clock, self.store_watch, settings.signing_key
        )
        runs = Runs(self.engine, push_surface, bounds)
        self.streaming = LiveStreams(self.engine, runs, self.watchers, clock)
        run_control = RunControl(self.engine, runs, push_surface)
        if self.cluster is not None:
            self.cluster.connect_statuses(self.streaming.statuses)
        push_routes = durablex.routes(
            push_surface,
            self.connect,
            self.serve,
            Events(self.engine, push_surface),
            runs,
            self.catalogue,
            run_control,
            self.streaming,
            RunStatistics(self.engine, push_surface, clock),
            FlowControl(self.engine, push_surface, clock),
            StepResults(self.engine, runs, push_surface, clock),
        )
        kernel = Kernel(
            engine=self.engine,
            clock=clock,
            ids=ids,
            deadlines=self.deadlines,
            namespaces=self.namespaces.known,
            push_surface=push_surface,
            push_runs=runs,
            control_surface=control_surface,
        )
        built = build_features(kernel, settings)
        self.feature_loops = [loop for parts in built for loop in parts.loops]
        feature_routes = [route for parts in built for route in parts.routes]
        rules = [rule for parts in built for rule in parts.expiry]
        self.expiry = make_expiry(settings, self.engine, clock, rules)
        self.deadlines.on_record(RUNNER.name, RunnerDue)
        self.deadlines.on_record(FLOW, FlowDue)
        self.deadlines.on_record(SCHEDULE.name, ScheduleDue)
        self.deadlines.on_record(METER.name, MeterDue)
        self.deadlines.on_record(REMAINDER.name, WakeRemaining)
        for kind in (SEEN.name, STARTED.name, BEGUN.name):
            self.deadlines.on_record(kind, ExpireDedupeId)
        for kind in (CALL.name, KEY.name):
            self.deadlines.on_record(kind, ExpireServiceCall)
        self.app = Application(
            Router(
                push_routes
                + feature_routes
                + routes(
                    control,
                    worker,
                    queries,
                    updates,
                    Activities(self.engine, clock, ids, control_surface, bounds),
                    Redrive(self.engine, control_surface.of("redrive")),
                    Services(self.engine, clock, ids, self.update_waiters, control_surface, bounds),
                    sessions,
                    message_streams,
                    Cancellations(self.engine, control_surface, worker_surface),
                    PreparedActivities(self.engine, leasing, worker_surface, bounds),
                    streams,
                    discovery,
                    payloads,
                    Workers(self.engine, clock, control_surface, settings.cadence),
                    BuildIds(self.engine, clock, control_surface, settings.cadence),
                    TaskQueues(
                        self.engine,
                        self.query_broker,
                        leasing,
                        clock,
                        control_surface,
                        settings.cadence,
                    ),
                    worker_surface,
                    discovery_surface,
                )
            ),
            authenticator(settings),
            surface_of=_surface_by_prefix(
                push_surface,
                surface_of(control_surface, worker_surface, discovery_surface, payload_surface),
            ),
            translate=translate,
            body_bytes_max=settings.body_bytes_max,
            local_access=(
                LocalAccess(settings.allowed_hosts) if settings.auth_driver == "none" else None
            ),
            compression_bytes_min=RESPONSE_COMPRESSION_BYTES_MIN if settings.compression else None,
        )

    async def open(self) -> None:
        """Open the store and load what the first request needs."""
        await self.store.open()
        if self.cluster is not None:
            await self.cluster.open()
        default = self.namespaces.default
        self.namespaces.known.update(await self.store.load_namespaces())
        if default not in self.namespaces.known:
            await self.store.add_namespace(default)
            self.namespaces.known.add(default)
            log.info("created namespace %s, which DW_DEFAULT_NAMESPACE names", default)
        await self.engine.open()
        await self.polling.open()
        await self.invoker.open()

    def loops(self) -> list[tuple[str, Coroutine[Any, Any, None]]]:
        """The background loops that run beside the beat for as long as the server lives."""
        loops: list[tuple[str, Coroutine[Any, Any, None]]] = [
            ("deadlines", self.deadlines.run(self.engine)),
            ("passes", self.invoker.run()),
            ("runners", self.connect.run()),
            ("serving", self.serve.run()),
            ("store watch", self.store_watch.run()),
            *((name, loop.run()) for name, loop in self.feature_loops),
        ]
        if self.expiry is not None:
            loops.append(("record expiry", self.expiry.run()))
        return loops if self.cluster is None else loops + self.cluster.loops()

    async def close(self) -> None:
        """Close all parts, the store last."""
        self.serve.close()
        self.invoker.close()
        self.connect.close()
        await self.store_watch.close()
        if self.cluster is not None:
            await self.cluster.close()
        await self.store.close()

    def drain(self) -> None:
        """Answer all waiting requests, and start nothing new."""
        self.catalogue.is_draining = self.discovery.is_draining = True
        self.runners.release_all()
        self.parked_polls.release_all()
        self.query_broker.release_all()
        self.watchers.release_all()
        self.update_waiters.release_all()
        self.stream_readers.release_all()

    def _release_polls(self) -> None:
        self.parked_polls.let_go(only_hasty=False)
        self.query_broker.let_polls_go()

    def _notify_waiters(self, run: Run) -> None:
        run_id = run.run_id
        if run_id in self.watchers.waiting:
            self.watchers.changed(run_id)
        if run_id in self.update_waiters.waiting:
            self.update_waiters.changed(run)
        if run_id in self.throttled_queues.behind:
            self.throttled_queues.changed(run_id)
        if run_id in self.sessions.behind:
            self.sessions.changed(run_id)
        if run.push is not None:
            self.streaming.changed(run)


def _surface_by_prefix(
    push: Surface, pull: Callable[[bytes], Surface]
) -> Callable[[bytes], Surface]:
    """The surface of a path: all routes of the pull protocol have one prefix."""
    return lambda path: pull(path) if path.startswith(b"/api/") else push


def query_rules(settings: Settings) -> QueryRules:
    """Timeouts and bounds of queries."""
    return QueryRules(
        timeout=settings.query_wait,
        lease_timeout=settings.query_lease_timeout or settings.workflow_lease_timeout,
        remembered=settings.query_remembered,
        pending_max=settings.queries_pending_max,
        polls_max=settings.query_polls_max,
    )


def authenticator(settings: Settings) -> Authenticator:
    """The authenticator that the settings choose."""
    if settings.auth_driver == "none":
        return NoAuthentication()
    keys = {FULL: settings.api_keys, READ: settings.read_keys}
    if settings.auth_driver == "signature":
        return SignatureAuthentication(
            shared=settings.signature_key if settings.shared_credential else None,
            by_role=settings.role_signature_keys,
            tokens=TokenAuthentication(shared=None, by_scope=keys) if any(keys.values()) else None,
        )
    return TokenAuthentication(
        shared=settings.auth_token if settings.shared_credential else None,
        by_role=settings.role_tokens,
        by_scope=keys,
        by_subject={
            principal.token: Principal(principal.subject, principal.roles, "token")
            for principal in settings.principals
        },
    )
