"""The parts list: the one place where real things are built."""

from perdure import __version__
from perdure.clock import Clock, SystemClock
from perdure.core.limits import RESPONSE_COMPRESSION_BYTES_MIN
from perdure.dispatch.asking import Asking
from perdure.dispatch.deadlines import DeadlineLoop
from perdure.dispatch.pollers import PollerYard
from perdure.dispatch.polling import Polling
from perdure.dispatch.queries import QueryDesk
from perdure.dispatch.query_book import QueryRules
from perdure.dispatch.watching import Watchers
from perdure.engine.beat import Engine
from perdure.engine.cache import RunCache
from perdure.engine.granting import Granting
from perdure.identity import IdSource
from perdure.protocols.durable_workflow.control import ControlPlane
from perdure.protocols.durable_workflow.discovery import Discovery
from perdure.protocols.durable_workflow.manifests import cluster_info, server_capabilities
from perdure.protocols.durable_workflow.queries import QueryPlane
from perdure.protocols.durable_workflow.routes import routes, surface_of
from perdure.protocols.durable_workflow.surfaces import (
    ControlSurface,
    DiscoverySurface,
    Namespaces,
    WorkerSurface,
    translate,
)
from perdure.protocols.durable_workflow.worker import WorkerPlane
from perdure.server.settings import Settings, sqlite_path
from perdure.store.interface import Store
from perdure.store.sqlite.store import SqliteStore
from perdure.web.app import Application
from perdure.web.auth import Authenticator, NoAuthentication, TokenAuthentication
from perdure.web.routing import Router


class Server:
    """Everything that runs, and nothing that listens."""

    def __init__(
        self, settings: Settings, *, store: Store | None = None, clock: Clock | None = None
    ) -> None:
        clock = SystemClock() if clock is None else clock
        ids = IdSource(clock.now)
        self.store: Store = SqliteStore(sqlite_path(settings.store)) if store is None else store
        self.yard = PollerYard()
        self.watchers = Watchers()
        self.deadlines = DeadlineLoop(clock)
        self.cache = RunCache()
        granting = Granting(
            workflow_timeout=settings.workflow_lease_timeout,
            activity_timeout=settings.activity_lease_timeout,
        )
        self.engine = Engine(
            store=self.store,
            clock=clock,
            ids=ids,
            matcher=self.yard,
            granting=granting,
            cache=self.cache,
            on_change=self.watchers.changed,
            on_due=self.deadlines.arm,
        )
        self.polling = Polling(self.engine, self.yard, granting)
        self.desk = QueryDesk(clock, ids, query_rules(settings), on_due=self.deadlines.arm)
        self.yard.on_registration_ended(self.desk.registration_ended)
        self.deadlines.also(self.desk.pass_time)
        asking = Asking(self.engine, self.desk)

        self.namespaces = Namespaces(settings.default_namespace)
        capabilities = server_capabilities(
            poll_timeout=settings.poll_timeout, compression=settings.compression
        )
        control_surface = ControlSurface(self.namespaces)
        worker_surface = WorkerSurface(self.namespaces, lambda: capabilities)
        discovery_surface = DiscoverySurface(self.namespaces)
        control = ControlPlane(
            self.engine,
            clock,
            ids,
            self.watchers,
            control_surface,
            poll_timeout=settings.poll_timeout,
            can_query=asking.can_ask,
        )
        queries = QueryPlane(
            self.engine,
            asking,
            self.desk,
            clock,
            control_surface.of("query"),
            worker_surface,
            poll_timeout=settings.poll_timeout,
        )
        worker = WorkerPlane(
            self.engine,
            self.polling,
            granting,
            clock,
            ids,
            worker_surface,
            poll_timeout=settings.poll_timeout,
        )
        info = cluster_info(
            server_id=settings.server_id,
            version=__version__,
            default_namespace=settings.default_namespace,
            capabilities=capabilities,
            body_bytes_max=settings.body_bytes_max,
        )
        discovery = Discovery(self.store, clock, self.namespaces, discovery_surface, info)
        self.app = Application(
            Router(routes(control, worker, queries, discovery, worker_surface, discovery_surface)),
            authenticator(settings),
            surface_of=surface_of(control_surface, worker_surface, discovery_surface),
            translate=translate,
            body_bytes_max=settings.body_bytes_max,
            compression_bytes_min=RESPONSE_COMPRESSION_BYTES_MIN if settings.compression else None,
        )

    async def open(self) -> None:
        """Open the store and load what must be known before the first request."""
        await self.store.open()
        self.namespaces.known.update(await self.store.load_namespaces())
        await self.engine.open()
        await self.polling.open()

    def drain(self) -> None:
        """Answer everybody who only waits."""
        self.yard.release_all()
        self.desk.release_all()
        self.watchers.release_all()


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
    return TokenAuthentication(shared=settings.auth_token, by_role=settings.role_tokens)
