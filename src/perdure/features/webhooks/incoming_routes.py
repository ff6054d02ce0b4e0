"""HTTP routes of incoming webhooks: sources, received webhooks, and the public receiving URL."""

from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from perdure.core.intake.keyring import CannotOpen
from perdure.core.intake.signature import Scheme
from perdure.core.intake.trigger import is_reserved, recorded_app, target_app
from perdure.core.limits import (
    DELIVERY_HEADERS_KEPT,
    EVENT_DATA_BYTES_MAX,
    NAME_LENGTH_MAX,
    SECOND,
)
from perdure.engine.events import Incoming
from perdure.features.webhooks.incoming_operations import ReceiveWebhook, RecordRefusedWebhook
from perdure.features.webhooks.incoming_rules import check, identity
from perdure.features.webhooks.operations import (
    RECEIVED,
    SOURCE,
    TOKEN,
    TOKEN_NAMESPACE,
    AddSource,
    Admitted,
    ChangeSource,
    Received,
    Source,
    secret_owner,
)
from perdure.features.webhooks.secrets import new_secret
from perdure.features.webhooks.shared_routes import PAGE, Patch, WebhookHandlers, with_secret
from perdure.features.webhooks.views import (
    cursor_of,
    not_found,
    paged,
    received_detail,
    received_view,
    short,
    source_view,
)
from perdure.protocols.durablex.json_depth import find_obstacle
from perdure.protocols.durablex.record_pages import Row, find_rows
from perdure.protocols.durablex.requests import bad_request, choice, integer, read_body
from perdure.protocols.durablex.views import ingested_view
from perdure.web.message import HttpError, Request, Response

_STATUSES: tuple[Admitted, ...] = (
    *("ingested", "deduped", "unauthorized", "invalid", "too_large", "misconfigured"),
)
_HIDDEN = frozenset({"authorization", "cookie", "proxy-authorization"})


class SourceBody(Struct, rename="camel"):
    """A new source; `event` is the older name of `eventName`."""

    event_name: str | None = None
    event: str | None = None
    name: str | None = None
    app: str | None = None
    target_app: str | None = None
    scheme: Scheme = "hmac_sha256"
    secret: str | None = None


class SourcePatch(Patch, rename="camel"):
    """A partial change; absent members stay as they are."""

    event_name: str | UnsetType = UNSET
    event: str | UnsetType = UNSET
    target_app: str | UnsetType | None = UNSET
    scheme: Scheme | UnsetType = UNSET


_body_decoder = msgspec.json.Decoder(SourceBody)
_patch_decoder = msgspec.json.Decoder(SourcePatch)


class Sources(WebhookHandlers):
    """The routes under /webhook-sources, their alias, and the public receiving URL."""

    # Configuration -------------------------------------------------------------------------------

    async def sources(self, request: Request) -> Response:
        """GET /webhook-sources, newest first."""
        page = await SOURCE.read_page(
            self._engine.store, request.namespace, limit=PAGE * 5, newest_first=True
        )
        return self._surface.answer(200, [self._view(request, one) for _, one in page])

    async def source(self, request: Request) -> Response:
        """GET /webhook-sources/{id}."""
        return self._surface.answer(200, self._view(request, await self._require_source(request)))

    async def add_source(self, request: Request) -> Response:
        """POST /webhook-sources. Only this response contains the secret."""
        self._secrets.require()
        body = read_body(request, _body_decoder)
        now, source_id = self._clock.now(), self._ids.ulid()
        secret = self._secrets.choose(body.secret)
        source = Source(
            id=source_id,
            token=self._ids.token(),
            event_name=_event_name(body.event_name or body.event or ""),
            created_at=now,
            updated_at=now,
            sealed=self._secrets.seal(secret, request.namespace, source_id),
            scheme=body.scheme,
            name=short(body.name, "name"),
            app=short(body.app, "app"),
            target_app=short(body.target_app, "targetApp"),
        )
        await self._engine.submit(AddSource(request.namespace, source))
        return self._surface.answer(201, with_secret(self._view(request, source), secret))

    async def change_source(self, request: Request) -> Response:
        """PATCH /webhook-sources/{id}."""
        self._secrets.require()
        patch = read_body(request, _patch_decoder)
        fields: dict[str, Any] = {}
        for event_name in (patch.event, patch.event_name):
            if event_name is not UNSET:
                fields["event_name"] = _event_name(event_name)
        fields |= patch.fields()
        if patch.target_app is not UNSET:
            fields["target_app"] = short(patch.target_app, "targetApp")
        if patch.scheme is not UNSET:
            fields["scheme"] = patch.scheme
        source = await self._require_source(request)
        secret = new_secret(patch.secret, rotate=patch.rotate_secret, secrets=self._secrets)
        if secret is not None:
            fields["sealed"] = self._secrets.seal(secret, request.namespace, source.id)
        _, changed = await self._engine.submit(
            ChangeSource(
                request.namespace,
                source,
                lambda old, now: msgspec.structs.replace(old, **fields, updated_at=now),
            )
        )
        if changed is None:
            raise not_found("source", source.id)
        return self._surface.answer(200, with_secret(self._view(request, changed), secret))

    async def remove_source(self, request: Request) -> Response:
        """DELETE /webhook-sources/{id}. Webhooks that it received stay."""
        self._secrets.require()
        source = await self._require_source(request)
        removed, _ = await self._engine.submit(
            ChangeSource(request.namespace, source, lambda old, now: None)
        )
        if removed is None:
            raise not_found("source", source.id)
        return self._surface.answer(200, {"id": source.id, "deleted": True})

    # Received webhooks ---------------------------------------------------------------------------

    async def received(self, request: Request) -> Response:
        """GET /webhook-source-deliveries, newest first."""
        query = request.query
        limit = integer(query, "limit", 1, 1_000, 100)
        status, source_id = choice(query, "status", _STATUSES), query.get("source") or None

        def show(key: str, one: Received) -> Row | None:
            view = received_view(one)
            fits = status in (None, view["status"]) and source_id in (None, one.source_id)
            return view if fits else None

        rows, cursor = await find_rows(
            RECEIVED,
            self._engine.store,
            request.namespace,
            show,
            limit=limit,
            after=cursor_of(query),
        )
        return paged(self._surface.answer(200, rows), cursor)

    async def show_received(self, request: Request) -> Response:
        """GET /webhook-source-deliveries/{id}."""
        return self._surface.answer(200, received_detail(await self._require_received(request)))

    async def replay(self, request: Request) -> Response:
        """POST /webhook-source-deliveries/{id}/replay: accept a stored body again."""
        received = await self._require_received(request)
        source = await SOURCE.read(self._engine.store, request.namespace, received.source_id)
        if source is None:
            raise not_found("source", received.source_id)
        if received.body is None:
            raise HttpError(
                409, "webhook_not_replayable", "this webhook was refused, or its body is not stored"
            )
        incoming = _incoming(request.namespace, source, received.body)
        updated, _ = await self._engine.submit(
            ReceiveWebhook(request.namespace, received, incoming, "replay")
        )
        shown = received_view(updated)
        result = {name: shown[name] for name in ("status", "eventId", "runId") if name in shown}
        return self._surface.answer(200, {"deliveryId": updated.id} | result)

    # The receiving URL ---------------------------------------------------------------------------

    async def receive(self, request: Request) -> Response:
        """POST /webhooks/{token}, from a sender that knows the token and signs the body."""
        token = request.params["token"]
        store = self._engine.store
        owner = await TOKEN.read(store, TOKEN_NAMESPACE, token) if len(token) <= 64 else None
        if owner is None:
            raise not_found("source", "of this address")
        source = await SOURCE.read(store, owner.namespace, owner.source_id)
        if source is None or not source.enabled:
            raise not_found("source", "of this address")
        body, headers = request.body, _texts(request.headers)
        received = Received(
            id=self._ids.ulid(),
            source_id=source.id,
            event_name=source.event_name,
            body_size=len(body),
            created_at=self._clock.now(),
            updated_at=self._clock.now(),
            app=recorded_app(source.app, source.target_app) or None,
            headers=_stored_headers(headers),
        )
        value = await self._require_valid(owner.namespace, source, received, headers, body)
        incoming = _incoming(
            owner.namespace,
            source,
            body,
            dedupe_id=identity(source.id, source.scheme, headers, body, value),
        )
        kept = msgspec.structs.replace(received, body=body)
        _, ingested = await self._engine.submit(
            ReceiveWebhook(owner.namespace, kept, incoming, "initial")
        )
        return self._surface.answer(202, ingested_view(ingested))

    async def _require_valid(
        self,
        namespace: str,
        source: Source,
        received: Received,
        headers: dict[str, str],
        body: bytes,
    ) -> object:
        """The decoded body of a valid webhook. Any other is recorded and refused."""

        async def refuse(status: Admitted, reason: str | None, error: HttpError) -> HttpError:
            await self._engine.submit(RecordRefusedWebhook(namespace, received, status, reason))
            return error

        if len(body) > EVENT_DATA_BYTES_MAX:
            message = f"the body has more than {EVENT_DATA_BYTES_MAX} bytes"
            raise await refuse("too_large", None, HttpError(413, "event_too_large", message))
        try:
            keyring = self._secrets.keyring
            if keyring is None:
                raise CannotOpen("there is no key")
            secret = keyring.open(source.sealed, owner=secret_owner(namespace, source.id))
        except CannotOpen:
            message = "this server cannot check signatures of this source"
            failed = HttpError(503, "webhook_misconfigured", message)
            raise await refuse("misconfigured", "verification_failed", failed) from None
        now = self._clock.now() // SECOND
        fault = check(source.scheme, secret, headers, body, now)
        if fault is not None:
            refused = HttpError(401, "webhook_unauthorized", fault.replace("_", " "))
            raise await refuse("unauthorized", fault, refused)
        try:
            if find_obstacle(body) is not None:
                raise msgspec.DecodeError
            body.decode()
            return msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            malformed = HttpError(400, "malformed_json", "the body is not JSON")
            raise await refuse("invalid", None, malformed) from None

    # Finding -------------------------------------------------------------------------------------

    async def _require_source(self, request: Request) -> Source:
        source_id = request.params["source_id"]
        found = await SOURCE.read(self._engine.store, request.namespace, source_id)
        if found is None:
            raise not_found("source", source_id)
        return found

    async def _require_received(self, request: Request) -> Received:
        received_id = request.params["received_id"]
        found = await RECEIVED.read(self._engine.store, request.namespace, received_id)
        if found is None:
            raise not_found("delivery", received_id)
        return found

    def _view(self, request: Request, source: Source) -> dict[str, Any]:
        host = request.headers.get(b"host", b"").decode("latin-1")
        return source_view(source, f"http://{host}/webhooks/{source.token}")


def _incoming(
    namespace: str, source: Source, body: bytes, dedupe_id: str | None = None
) -> Incoming:
    return Incoming(
        namespace=namespace,
        name=source.event_name,
        data=body,
        app=recorded_app(source.app, source.target_app),
        target=target_app(source.app, source.target_app),
        dedupe_id=dedupe_id,
    )


def _event_name(name: str) -> str:
    if not name.strip():
        raise bad_request("eventName must not be blank")
    if len(name) > NAME_LENGTH_MAX:
        raise bad_request(f"eventName has more than {NAME_LENGTH_MAX} characters")
    if is_reserved(name):
        raise bad_request(f"only the engine raises {name[:64]}")
    return name


def _texts(headers: dict[bytes, bytes]) -> dict[str, str]:
    return {
        name.decode("latin-1").lower(): value.decode("latin-1") for name, value in headers.items()
    }


def _stored_headers(headers: dict[str, str]) -> dict[str, str]:
    """The headers that are stored: a bounded number, without credentials."""
    shown = [(name, value[:256]) for name, value in headers.items() if name not in _HIDDEN]
    return dict(shown[:DELIVERY_HEADERS_KEPT])
