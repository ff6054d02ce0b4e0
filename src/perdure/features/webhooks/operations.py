"""Operations that configure webhooks: endpoints for outgoing ones, sources of incoming ones.

All endpoints of a namespace are one record, so that the end of a run reads one record. Every source
has a record of its own, and a second one by its token. That one is in no namespace, because a
sender names only the token. Secrets are sealed before they get here.
"""

from collections.abc import Callable
from typing import Literal

from msgspec import Struct, field

from perdure.core.intake.signature import Scheme
from perdure.core.limits import WEBHOOK_ENDPOINTS_MAX, WEBHOOK_SOURCES_MAX
from perdure.core.rejection import StructuralLimitExceeded
from perdure.engine.operation import Operation
from perdure.engine.records import RecordKind
from perdure.engine.world import World
from perdure.features.webhooks.delivery_operations import open_delivery
from perdure.features.webhooks.rules import Kind, message, opened
from perdure.store.interface import RecordKey, RecordRange, Store


class Endpoint(Struct, frozen=True, kw_only=True):
    """A URL, and the kinds of messages that it subscribes to."""

    id: str
    url: str
    event_kinds: tuple[Kind, ...]
    created_at: int
    updated_at: int
    sealed: bytes
    enabled: bool = True
    name: str | None = None
    app: str | None = None
    """Only runs of this app; none means all."""
    scheme: Scheme = "hmac_sha256"

    def is_subscribed(self, kind: Kind, app: str) -> bool:
        return self.enabled and kind in self.event_kinds and self.app in (None, app)


class Endpoints(Struct):
    """All endpoints of a namespace, oldest first."""

    items: dict[str, Endpoint] = field(default_factory=dict)


class Source(Struct, frozen=True, kw_only=True):
    """An external system whose webhooks become events."""

    id: str
    token: str
    event_name: str
    created_at: int
    updated_at: int
    sealed: bytes
    scheme: Scheme = "hmac_sha256"
    enabled: bool = True
    name: str | None = None
    app: str | None = None
    target_app: str | None = None


class TokenOwner(Struct, frozen=True):
    """The source that a token belongs to."""

    namespace: str
    source_id: str


Trigger = Literal["initial", "replay"]
Admitted = Literal["ingested", "deduped", "unauthorized", "invalid", "too_large", "misconfigured"]


class Admittance(Struct, frozen=True, kw_only=True):
    """One try to accept a webhook: on arrival, or as a replay."""

    attempt: int
    trigger: Trigger
    status: Admitted
    created_at: int
    failure_reason: str | None = None
    event_id: str | None = None
    run_id: str | None = None


class Received(Struct, frozen=True, kw_only=True):
    """A received webhook, and the result of each try to accept it."""

    id: str
    source_id: str
    event_name: str
    body_size: int
    created_at: int
    updated_at: int
    app: str | None = None
    body: bytes | None = None
    """Stored if the webhook can be replayed."""
    headers: dict[str, str] = field(default_factory=dict)
    attempt_count: int = 0
    attempts: tuple[Admittance, ...] = ()
    """The latest ones, oldest first."""

    @property
    def last(self) -> Admittance:
        return self.attempts[-1]


class Refusals(Struct, frozen=True):
    """Which refused webhooks of a source are stored, oldest first, and the count of all."""

    stored: tuple[str, ...] = ()
    count: int = 0


ENDPOINTS = RecordKind("webhook_endpoints", Endpoints)
SOURCE = RecordKind("webhook_source", Source)
TOKEN = RecordKind("webhook_token", TokenOwner)
RECEIVED = RecordKind("webhook_received", Received)
REFUSALS = RecordKind("webhook_refusals", Refusals)
"""By the id of the source."""
TOKEN_NAMESPACE = ""
"""The namespace of the records that find a source by its token."""


# Endpoints ----------------------------------------------------------------------------------------


class AddEndpoint(Operation):
    """Adds an endpoint."""

    __slots__ = ("_endpoint", "_namespace")
    name = "add_endpoint"

    def __init__(self, namespace: str, endpoint: Endpoint) -> None:
        self._namespace = namespace
        self._endpoint = endpoint

    def records(self) -> tuple[RecordKey, ...]:
        return (ENDPOINTS.key(self._namespace, ""),)

    def decide(self, world: World) -> Endpoint:
        endpoints = ENDPOINTS.find(world, self._namespace, "") or Endpoints()
        if len(endpoints.items) >= WEBHOOK_ENDPOINTS_MAX:
            raise StructuralLimitExceeded(
                f"{WEBHOOK_ENDPOINTS_MAX} webhook endpoints are configured",
                limit_kind="webhook_endpoint_count",
                configured_limit=WEBHOOK_ENDPOINTS_MAX,
            )
        endpoints.items[self._endpoint.id] = self._endpoint
        ENDPOINTS.put(world, self._namespace, "", endpoints)
        return self._endpoint


class ChangeEndpoint(Operation):
    """Changes an endpoint, or removes it if `change` returns none. Returns old and new."""

    __slots__ = ("_change", "_endpoint_id", "_namespace")
    name = "change_endpoint"

    def __init__(
        self,
        namespace: str,
        endpoint_id: str,
        change: Callable[[Endpoint, int], Endpoint | None],
    ) -> None:
        self._namespace = namespace
        self._endpoint_id = endpoint_id
        self._change = change

    def records(self) -> tuple[RecordKey, ...]:
        return (ENDPOINTS.key(self._namespace, ""),)

    def decide(self, world: World) -> tuple[Endpoint | None, Endpoint | None]:
        endpoints = ENDPOINTS.find(world, self._namespace, "") or Endpoints()
        endpoint = endpoints.items.get(self._endpoint_id)
        if endpoint is None:
            return None, None
        changed = self._change(endpoint, world.ctx.now)
        if changed is None:
            del endpoints.items[self._endpoint_id]
        else:
            endpoints.items[self._endpoint_id] = changed
        ENDPOINTS.put(world, self._namespace, "", endpoints)
        return endpoint, changed


class Announce(Operation):
    """Opens a delivery to every subscribed endpoint, in the transaction that it reports."""

    __slots__ = ("_app", "_data", "_kind", "_namespace", "_run_id")
    name = "announce"

    def __init__(self, namespace: str, kind: Kind, *, app: str, run_id: str, data: bytes) -> None:
        self._namespace = namespace
        self._kind = kind
        self._app = app
        self._run_id = run_id
        self._data = data

    def records(self) -> tuple[RecordKey, ...]:
        return (ENDPOINTS.key(self._namespace, ""),)

    def decide(self, world: World) -> None:
        endpoints = ENDPOINTS.find(world, self._namespace, "")
        now = world.ctx.now
        for endpoint in endpoints.items.values() if endpoints is not None else ():
            if endpoint.is_subscribed(self._kind, self._app):
                delivery_id = world.ctx.ids.ulid()
                delivery = opened(
                    delivery_id,
                    app=self._app,
                    url=endpoint.url,
                    kind=self._kind,
                    body=message(delivery_id, self._kind, self._data, now),
                    now=now,
                    endpoint_id=endpoint.id,
                    run_id=self._run_id,
                )
                open_delivery(world, self._namespace, delivery)


# Sources ------------------------------------------------------------------------------------------


class AddSource(Operation):
    """Adds a source."""

    __slots__ = ("_count", "_namespace", "_source")
    name = "add_source"
    reads_before_load = True

    def __init__(self, namespace: str, source: Source) -> None:
        self._namespace = namespace
        self._source = source
        self._count = 0

    async def prepare(self, store: Store, world: World) -> tuple[str, ...]:
        sources = RecordRange(
            kind=SOURCE.name, namespace=self._namespace, limit=WEBHOOK_SOURCES_MAX
        )
        self._count = len(await store.find_record_keys(sources))
        return ()

    def records(self) -> tuple[RecordKey, ...]:
        return (
            SOURCE.key(self._namespace, self._source.id),
            TOKEN.key(TOKEN_NAMESPACE, self._source.token),
        )

    def decide(self, world: World) -> Source:
        if self._count >= WEBHOOK_SOURCES_MAX:
            raise StructuralLimitExceeded(
                f"{WEBHOOK_SOURCES_MAX} webhook sources are configured",
                limit_kind="webhook_source_count",
                configured_limit=WEBHOOK_SOURCES_MAX,
            )
        source = self._source
        SOURCE.put(world, self._namespace, source.id, source)
        TOKEN.put(world, TOKEN_NAMESPACE, source.token, TokenOwner(self._namespace, source.id))
        return source


class ChangeSource(Operation):
    """Changes a source, or removes it if `change` returns none. Returns old and new.

    The token never changes, so the one that was read before is valid here.
    """

    __slots__ = ("_change", "_namespace", "_source")
    name = "change_source"

    def __init__(
        self, namespace: str, source: Source, change: Callable[[Source, int], Source | None]
    ) -> None:
        self._namespace = namespace
        self._source = source
        self._change = change

    def records(self) -> tuple[RecordKey, ...]:
        return (
            SOURCE.key(self._namespace, self._source.id),
            TOKEN.key(TOKEN_NAMESPACE, self._source.token),
        )

    def decide(self, world: World) -> tuple[Source | None, Source | None]:
        source = SOURCE.find(world, self._namespace, self._source.id)
        if source is None:
            return None, None
        changed = self._change(source, world.ctx.now)
        if changed is None:
            SOURCE.remove(world, self._namespace, source.id)
            TOKEN.remove(world, TOKEN_NAMESPACE, source.token)
        else:
            assert changed.token == source.token
            SOURCE.put(world, self._namespace, source.id, changed)
        return source, changed


def secret_owner(namespace: str, owner_id: str) -> str:
    """The owner that a sealed secret is bound to."""
    return f"{namespace}\x1f{owner_id}"
