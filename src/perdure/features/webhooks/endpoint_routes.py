"""HTTP routes of outgoing webhooks: endpoints, and the deliveries to them."""

from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from perdure.clock import Clock
from perdure.core import instant
from perdure.dispatch.egress import Blocked, EgressGuard
from perdure.engine.beat import Engine
from perdure.features.webhooks.delivery_operations import DELIVERY, Redeliver
from perdure.features.webhooks.operations import (
    ENDPOINTS,
    AddEndpoint,
    ChangeEndpoint,
    Endpoint,
    Endpoints,
)
from perdure.features.webhooks.rules import STATUSES, SUBSCRIBABLE, Delivery, Kind
from perdure.features.webhooks.secrets import Secrets, new_secret
from perdure.features.webhooks.shared_routes import PAGE, Patch, WebhookHandlers, with_secret
from perdure.features.webhooks.views import (
    attempt_view,
    cursor_of,
    delivery_view,
    endpoint_view,
    not_found,
    paged,
    short,
)
from perdure.identity import IdSource
from perdure.protocols.durablex.record_pages import SCAN_PAGES_MAX, Row, find_rows
from perdure.protocols.durablex.requests import (
    bad_request,
    choice,
    integer,
    read_body,
    read_instant,
)
from perdure.protocols.durablex.surface import DurablexSurface
from perdure.web.message import Request, Response


class EndpointBody(Struct, rename="camel"):
    """A new endpoint."""

    url: str
    event_kinds: list[str]
    name: str | None = None
    app: str | None = None
    secret: str | None = None


class EndpointPatch(Patch, rename="camel"):
    """A partial change; absent members stay as they are."""

    url: str | UnsetType = UNSET
    event_kinds: list[str] | UnsetType = UNSET


_body_decoder = msgspec.json.Decoder(EndpointBody)
_patch_decoder = msgspec.json.Decoder(EndpointPatch)


class Webhooks(WebhookHandlers):
    """The routes under /webhook-endpoints and /webhook-deliveries."""

    def __init__(
        self,
        engine: Engine,
        surface: DurablexSurface,
        clock: Clock,
        ids: IdSource,
        secrets: Secrets,
        guard: EgressGuard,
    ) -> None:
        super().__init__(engine, surface, clock, ids, secrets)
        self._guard = guard

    # Endpoints -----------------------------------------------------------------------------------

    async def endpoints(self, request: Request) -> Response:
        """GET /webhook-endpoints, newest first."""
        endpoints = await self._endpoints(request)
        rows = [endpoint_view(one) for one in reversed(endpoints.items.values())]
        return self._surface.answer(200, rows)

    async def endpoint(self, request: Request) -> Response:
        """GET /webhook-endpoints/{id}."""
        endpoint_id = request.params["endpoint_id"]
        found = (await self._endpoints(request)).items.get(endpoint_id)
        if found is None:
            raise not_found("endpoint", endpoint_id)
        return self._surface.answer(200, endpoint_view(found))

    async def add_endpoint(self, request: Request) -> Response:
        """POST /webhook-endpoints. Only this response contains the secret."""
        self._secrets.require()
        body = read_body(request, _body_decoder)
        now, endpoint_id = self._clock.now(), self._ids.ulid()
        secret = self._secrets.choose(body.secret)
        endpoint = Endpoint(
            id=endpoint_id,
            url=self._require_reachable(body.url),
            event_kinds=_kinds(body.event_kinds),
            created_at=now,
            updated_at=now,
            sealed=self._secrets.seal(secret, request.namespace, endpoint_id),
            name=short(body.name, "name"),
            app=short(body.app, "app"),
        )
        await self._engine.submit(AddEndpoint(request.namespace, endpoint))
        return self._surface.answer(201, with_secret(endpoint_view(endpoint), secret))

    async def change_endpoint(self, request: Request) -> Response:
        """PATCH /webhook-endpoints/{id}."""
        self._secrets.require()
        endpoint_id = request.params["endpoint_id"]
        patch = read_body(request, _patch_decoder)
        fields: dict[str, Any] = {}
        if patch.url is not UNSET:
            fields["url"] = self._require_reachable(patch.url)
        if patch.event_kinds is not UNSET:
            fields["event_kinds"] = _kinds(patch.event_kinds)
        fields |= patch.fields()
        secret = new_secret(patch.secret, rotate=patch.rotate_secret, secrets=self._secrets)
        if secret is not None:
            fields["sealed"] = self._secrets.seal(secret, request.namespace, endpoint_id)
        _, changed = await self._engine.submit(
            ChangeEndpoint(
                request.namespace,
                endpoint_id,
                lambda old, now: msgspec.structs.replace(old, **fields, updated_at=now),
            )
        )
        if changed is None:
            raise not_found("endpoint", endpoint_id)
        return self._surface.answer(200, with_secret(endpoint_view(changed), secret))

    async def remove_endpoint(self, request: Request) -> Response:
        """DELETE /webhook-endpoints/{id}. Its deliveries in progress end as dead."""
        self._secrets.require()
        endpoint_id = request.params["endpoint_id"]
        removed, _ = await self._engine.submit(
            ChangeEndpoint(request.namespace, endpoint_id, lambda old, now: None)
        )
        if removed is None:
            raise not_found("endpoint", endpoint_id)
        return self._surface.answer(200, {"id": endpoint_id, "deleted": True})

    def _require_reachable(self, url: str) -> str:
        """Refuse a URL that no delivery may reach. Host names are resolved when one is sent."""
        try:
            self._guard.require_possible(url)
        except Blocked as refused:
            raise bad_request(f"url: {refused}") from None
        return url

    async def stats(self, request: Request) -> Response:
        """GET /webhook-endpoints/stats: results of the latest deliveries to each."""
        since = read_instant(request.query, "since") or 0
        rows: dict[str, dict[str, Any]] = {
            endpoint_id: {"endpointId": endpoint_id, "delivered": 0, "succeeded": 0, "failed": 0}
            for endpoint_id in (await self._endpoints(request)).items
        }
        after = None
        for _ in range(SCAN_PAGES_MAX):
            page = await self._page(request, after)
            for _, delivery in page:
                row = rows.get(delivery.endpoint_id or "")
                if row is not None and delivery.created_at >= since:
                    _count(row, delivery)
            if len(page) < PAGE or page[-1][1].created_at < since:
                break
            after = page[-1][0]
        return self._surface.answer(200, list(rows.values()))

    # Deliveries ----------------------------------------------------------------------------------

    async def deliveries(self, request: Request) -> Response:
        """GET /webhook-deliveries, newest first."""
        query = request.query
        limit = integer(query, "limit", 1, 1_000, 100)
        status, app = choice(query, "status", STATUSES), query.get("app") or None

        def show(key: str, delivery: Delivery) -> Row | None:
            fits = status in (None, delivery.status) and app in (None, delivery.app)
            return delivery_view(delivery) if fits else None

        rows, cursor = await find_rows(
            DELIVERY,
            self._engine.store,
            request.namespace,
            show,
            limit=limit,
            after=cursor_of(query),
        )
        return paged(self._surface.answer(200, rows), cursor)

    async def delivery(self, request: Request) -> Response:
        """GET /webhook-deliveries/{id}, with its tries."""
        delivery_id = request.params["delivery_id"]
        found = await DELIVERY.read(self._engine.store, request.namespace, delivery_id)
        if found is None:
            raise not_found("delivery", delivery_id)
        attempts = [attempt_view(found, attempt) for attempt in found.attempts]
        return self._surface.answer(200, delivery_view(found) | {"attempts": attempts})

    async def redeliver(self, request: Request) -> Response:
        """POST /webhook-deliveries/{id}/redeliver."""
        delivery_id = request.params["delivery_id"]
        found = await self._engine.submit(Redeliver(request.namespace, delivery_id))
        if found is None:
            raise not_found("delivery", delivery_id)
        return self._surface.answer(202, delivery_view(found))

    async def _endpoints(self, request: Request) -> Endpoints:
        return await ENDPOINTS.read(self._engine.store, request.namespace, "") or Endpoints()

    async def _page(self, request: Request, after: str | None) -> list[tuple[str, Delivery]]:
        page = await DELIVERY.read_page(
            self._engine.store, request.namespace, limit=PAGE, after=after, newest_first=True
        )
        return list(page)


def _count(row: dict[str, Any], delivery: Delivery) -> None:
    row["delivered"] += 1
    row["succeeded"] += delivery.status == "succeeded"
    row["failed"] += delivery.status in ("failed", "exhausted", "dead")
    # Deliveries come newest first.
    row.setdefault("lastDelivery", instant.text(delivery.created_at))


def _kinds(requested: list[str]) -> tuple[Kind, ...]:
    kinds = [kind for kind in SUBSCRIBABLE if kind in requested]
    if not requested or len(kinds) != len(set(requested)):
        raise bad_request(f"eventKinds must be some of {', '.join(SUBSCRIBABLE)}")
    return tuple(kinds)
