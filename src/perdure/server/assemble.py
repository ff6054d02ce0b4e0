"""The parts list: the one place where real things are built."""

import logging
from collections.abc import Callable, Coroutine
from typing import Any

from perdure import __version__
from perdure.clock import Clock, FollowingClock, SystemClock
from perdure.core.limits import RESPONSE_COMPRESSION_BYTES_MIN
from perdure.core.run.state import TASK_KINDS, Dialect, Run
from perdure.dispatch.asking import Asking
from perdure.dispatch.deadlines import DeadlineLoop
from perdure.dispatch.invoking import Invoker
from perdure.dispatch.pollers import PollerYard
from perdure.dispatch.polling import Polling
from perdure.dispatch.queries import QueryDesk
from perdure.dispatch.query_book import QueryRules
from perdure.dispatch.runners import RunnerYard
from perdure.dispatch.sessions import SessionDesk
from perdure.dispatch.shut_queues import ShutQueues
from perdure.dispatch.store_watch import StoreWatch
from perdure.dispatch.tailing import Tails
from perdure.dispatch.turns import Turns
from perdure.dispatch.updating import UpdateWaiters
from perdure.dispatch.watching import Watchers
from perdure.dispatch.yards import Yards
from perdure.engine.admission import FLOW, FlowDue
from perdure.engine.allowing import LEDGER
from perdure.engine.beat import Engine
from perdure.engine.cache import RunCache
from perdure.engine.granting import Granting
from perdure.engine.intake import REMAINDER, SEEN, ForgetSeen, WakeRemaining
from perdure.engine.manual import STARTED
from perdure.engine.payloads import PAYLOADS, ForgetPayload
from perdure.engine.registering import RUNNER, RunnerDue
from perdure.engine.run_control import BEGUN
from perdure.engine.scheduling import SCHEDULE
from perdure.engine.scoring import GIVEN
from perdure.engine.service_calls import CALL, KEY, ForgetCall
from perdure.engine.sessions import SESSION
from perdure.engine.streams import STREAMS, ExpireStream
from perdure.engine.ticking import ScheduleDue
from perdure.engine.webhooks import RECEIVED, REFUSALS
from perdure.identity import IdSource
from perdure.protocols.durable_workflow.activities import Activities
from perdure.protocols.durable_workflow.build_ids import BuildIds
from perdure.protocols.durable_workflow.cancelling import Cancelling
from perdure.protocols.durable_workflow.control import ControlPlane
from perdure.protocols.durable_workflow.discovery import Discovery
from perdure.protocols.durable_workflow.finishing import Finishing
from perdure.protocols.durable_workflow.manifests import cluster_info, server_capabilities
from perdure.protocols.durable_workflow.message_streams import MessageStreams
from perdure.protocols.durable_workflow.prepared import PreparedActivities
from perdure.protocols.durable_workflow.queries import QueryPlane
from perdure.protocols.durable_workflow.redriving import Redriving
from perdure.protocols.durable_workflow.refusals import Refusals
from perdure.protocols.durable_workflow.retention import SystemRetention, retention_view
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
from perdure.protocols.durablex.approvals import Approvals
from perdure.protocols.durablex.catalogue import CatalogueReader
from perdure.protocols.durablex.connect import Connect
from perdure.protocols.durablex.control import RunControl
from perdure.protocols.durablex.conversations import Conversations
from perdure.protocols.durablex.events import Events
from perdure.protocols.durablex.explaining import Explaining
from perdure.protocols.durablex.figures import Figures
from perdure.protocols.durablex.flow import FlowControl
from perdure.protocols.durablex.people import people_routes
from perdure.protocols.durablex.runs import Runs
from perdure.protocols.durablex.scores import Scores
from perdure.protocols.durablex.serve import Serve
from perdure.protocols.durablex.step_results import StepResults
from perdure.protocols.durablex.streaming import Streaming
from perdure.protocols.durablex.surface import DurablexSurface
from perdure.protocols.durablex.webhook_routes import flow_routes
from perdure.server.ai import make_ai_routes, make_inferrer
from perdure.server.neighbours import Neighbours
from perdure.server.retention import make_pruner
from perdure.server.settings import Settings, is_postgres
from perdure.server.siblings import Family, Siblings
from perdure.server.stores import make_hint_wire, make_parcel_wire, make_store
from perdure.server.webhooks import (
    make_deliverer,
    make_forgetter,
    make_runner_guard,
    make_webhook_routes,
)
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
    """Everything that runs, and nothing that listens."""

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
        self.yard = PollerYard(parked_max=settings.polls_max)
        self.runners = RunnerYard()
        yards = Yards(self.yard, {TASK_KINDS[Dialect.PUSH]: self.runners})
        self.watchers = Watchers()
        self.update_waiters = UpdateWaiters()
        self.tails = Tails()
        self.deadlines = DeadlineLoop(clock)
        self.cache = RunCache()
        granting = Granting(
            workflow_timeout=settings.workflow_lease_timeout,
            activity_timeout=settings.activity_lease_timeout,
            allowances=settings.allowances,
        )
        self.neighbours: Neighbours | None = None
        if (among := shared(self.store)) is not None:
            self.neighbours = Neighbours(
                node_id=node_id,
                clock=clock,
                store=among,
                wire=make_hint_wire(settings),
                parcels=make_parcel_wire(settings, node_id=node_id),
                yard=self.yard,
                yards=yards,
                watchers=self.watchers,
                update_waiters=self.update_waiters,
                siblings=None if family is None else Siblings(family, node_id),
            )
        self.engine = Engine(
            store=self.store,
            clock=clock,
            ids=ids,
            matcher=yards,
            granting=granting,
            cache=self.cache,
            on_change=self._changed,
            on_record=lambda key: self.tails.changed(key.target),
            on_due=self.deadlines.arm,
            herald=None if self.neighbours is None else self.neighbours.hints,
            bounds=bounds,
        )
        self.shut_queues = ShutQueues(self.yard)
        self.engine.shut = self.shut_queues.queues
        self.polling = Polling(self.engine, self.yard, granting, yards, self.shut_queues)
        self.runners.connect(self.polling.look)
        self.invoker = Invoker(self.engine, clock, self.runners, timeout=settings.pass_timeout)
        self.sessions = SessionDesk(self.engine, self.yard, granting)
        self.deadlines.on_record(SESSION.name, self.sessions.on_due)
        self.deadlines.on_record(
            LEDGER.name, self.shut_queues.on_due, self.shut_queues.minute_passed
        )
        self.shut_queues.also_tell(self.sessions.quotas_renewed)
        self.deadlines.on_record(STREAMS.name, ExpireStream)
        post = None if self.neighbours is None else self.neighbours.post
        self.desk = QueryDesk(
            clock,
            ids,
            query_rules(settings),
            on_due=self.deadlines.arm,
            node="" if post is None else node_id,
            remote=post,
        )
        self.turns = Turns(clock)
        self.yard.connect_turns(self.turns)
        self.desk.connect_turns(self.turns)
        self.yard.on_registration_ended(self.desk.registration_ended)
        self.desk.draining = self.engine.rollouts.draining
        self.yard.on_drained(self.desk.drained)
        self.deadlines.also(self.desk.pass_time)
        self.store_watch = StoreWatch(self.store, clock, self._store_is_out)
        asking = Asking(self.engine, self.desk)
        if self.neighbours is not None:
            self.neighbours.connect(self.engine, self.polling)
            self.neighbours.connect_desk(self.desk)
            self.neighbours.connect_tails(self.tails)
            asking.connect(self.engine.refresh_workers)

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
            can_query=asking.can_ask,
            bounds=bounds,
            refusals=refusals,
        )
        queries = QueryPlane(
            self.engine,
            asking,
            self.desk,
            clock,
            control_surface.of("query"),
            worker_surface,
            poll_timeout=settings.poll_timeout,
            bounds=bounds,
        )
        worker = WorkerPlane(
            self.engine,
            self.polling,
            granting,
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
        streams = Streams(self.engine, self.tails, control_surface)
        info = cluster_info(
            server_id=settings.server_id,
            version=__version__,
            default_namespace=settings.default_namespace,
            capabilities=capabilities,
            body_bytes_max=settings.body_bytes_max,
            bounds=bounds,
        )
        # What may not come in a body is uploaded, however small it is.
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
            Finishing(self.engine, self.desk, clock),
            is_open=settings.external_payloads,
        )
        self.deadlines.on_record(PAYLOADS.name, ForgetPayload)
        self.forgetter = make_forgetter(settings, self.engine, clock)
        known = self.namespaces.known
        self.pruner = make_pruner(settings, self.engine, clock, self.deadlines, known)
        self.deliverer = make_deliverer(settings, self.engine, clock, self.deadlines)
        self.inferrer = make_inferrer(settings, self.engine, clock, self.deadlines)
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
        if self.neighbours is not None:
            self.serve.on_served = self.neighbours.hints.served
            self.neighbours.hints.on_runners = self.serve.look_soon
        self.catalogue = CatalogueReader(
            self.engine, push_surface, clock, self.store_watch, settings.signing_key
        )
        runs = Runs(self.engine, push_surface, bounds)
        self.streaming = Streaming(self.engine, runs, self.watchers, clock)
        run_control = RunControl(self.engine, runs, push_surface)
        if self.neighbours is not None:
            self.neighbours.connect_statuses(self.streaming.statuses)
        push_routes = durablex.routes(
            push_surface,
            self.connect,
            self.serve,
            Events(self.engine, push_surface),
            runs,
            self.catalogue,
            run_control,
            self.streaming,
            Figures(self.engine, push_surface, clock),
            StepResults(self.engine, runs, push_surface, clock),
        )
        push_routes += people_routes(
            push_surface,
            run_control,
            Approvals(self.engine, push_surface),
            Scores(self.engine, runs, push_surface),
            Conversations(self.engine, push_surface),
            Explaining(self.engine, runs, self.inferrer.provider),
        )
        push_routes += flow_routes(push_surface, FlowControl(self.engine, push_surface, clock))
        push_routes += make_webhook_routes(settings, self.engine, push_surface, clock, ids)
        push_routes += make_ai_routes(self.engine, push_surface, clock)
        self.deadlines.on_record(RUNNER.name, RunnerDue)
        self.deadlines.on_record(FLOW, FlowDue)
        self.deadlines.on_record(SCHEDULE.name, ScheduleDue)
        self.deadlines.on_record(REMAINDER.name, WakeRemaining)
        for kind in (
            *(SEEN.name, STARTED.name, GIVEN.name, BEGUN.name),
            *(RECEIVED.name, REFUSALS.name),
        ):
            self.deadlines.on_record(kind, ForgetSeen)
        for kind in (CALL.name, KEY.name):
            self.deadlines.on_record(kind, ForgetCall)
        self.app = Application(
            Router(
                push_routes
                + routes(
                    control,
                    worker,
                    queries,
                    updates,
                    Activities(self.engine, clock, ids, control_surface, bounds),
                    Redriving(self.engine, control_surface.of("redrive")),
                    Services(self.engine, clock, ids, self.update_waiters, control_surface, bounds),
                    sessions,
                    message_streams,
                    Cancelling(self.engine, control_surface, worker_surface),
                    PreparedActivities(self.engine, granting, worker_surface, bounds),
                    streams,
                    discovery,
                    payloads,
                    SystemRetention(
                        self.engine, self.pruner, control_surface, settings.history_retention
                    ),
                    Workers(self.engine, clock, control_surface, settings.cadence),
                    BuildIds(self.engine, clock, control_surface, settings.cadence),
                    TaskQueues(
                        self.engine, self.desk, granting, clock, control_surface, settings.cadence
                    ),
                    worker_surface,
                    discovery_surface,
                )
            ),
            authenticator(settings),
            surface_of=_either(
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
        """Open the store and load what must be known before the first request."""
        await self.store.open()
        if self.neighbours is not None:
            await self.neighbours.open()
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
        """What runs beside the beat for as long as the server lives."""
        loops: list[tuple[str, Coroutine[Any, Any, None]]] = [
            ("deadlines", self.deadlines.run(self.engine)),
            ("deliveries", self.deliverer.run()),
            ("model calls", self.inferrer.run()),
            ("passes", self.invoker.run()),
            ("runners", self.connect.run()),
            ("serving", self.serve.run()),
            ("pruning", self.pruner.run()),
            ("store watch", self.store_watch.run()),
        ]
        if self.forgetter is not None:
            loops.append(("forgetting", self.forgetter.run()))
        return loops if self.neighbours is None else loops + self.neighbours.loops()

    async def close(self) -> None:
        """Let go of the store."""
        self.serve.close()
        self.invoker.close()
        self.connect.close()
        await self.store_watch.close()
        if self.neighbours is not None:
            await self.neighbours.close()
        await self.store.close()

    def drain(self) -> None:
        """Answer everybody who only waits, and begin nothing new."""
        self.catalogue.is_draining = self.discovery.is_draining = True
        self.runners.release_all()
        self.yard.release_all()
        self.desk.release_all()
        self.watchers.release_all()
        self.update_waiters.release_all()
        self.tails.release_all()

    def _store_is_out(self) -> None:
        self.yard.let_go(only_hasty=False)
        self.desk.let_polls_go()

    def _changed(self, run: Run) -> None:
        run_id = run.run_id
        if run_id in self.watchers.waiting:
            self.watchers.changed(run_id)
        if run_id in self.update_waiters.waiting:
            self.update_waiters.changed(run)
        if run_id in self.shut_queues.behind:
            self.shut_queues.changed(run_id)
        if run_id in self.sessions.behind:
            self.sessions.changed(run_id)
        if run.push is not None:
            self.streaming.changed(run)


def _either(push: Surface, pull: Callable[[bytes], Surface]) -> Callable[[bytes], Surface]:
    """The family of a path: everything of the pull protocol stands under one prefix."""
    return lambda path: pull(path) if path.startswith(b"/api/") else push


def query_rules(settings: Settings) -> QueryRules:
    """How long queries last, and how many may wait."""
    return QueryRules(
        timeout=settings.query_wait,
        lease_timeout=settings.query_lease_timeout or settings.workflow_lease_timeout,
        remembered=settings.query_remembered,
        pending_max=settings.queries_pending_max,
        polls_max=settings.query_polls_max,
    )


def authenticator(settings: Settings) -> Authenticator:
    """The door that the settings ask for."""
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
            each.token: Principal(each.subject, each.roles, "token") for each in settings.principals
        },
    )
