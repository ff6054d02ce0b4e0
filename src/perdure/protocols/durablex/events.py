"""HTTP routes of events: receive, list, show."""

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from perdure.core.intake.trigger import is_reserved, recorded_app, target_app
from perdure.core.limits import (
    EVENT_DATA_BYTES_MAX,
    LIST_PAGE_SIZE_DEFAULT,
    LIST_PAGE_SIZE_MAX,
    NAME_LENGTH_MAX,
    TAG_KEY_LENGTH_MAX,
    TAG_VALUE_LENGTH_MAX,
    TAGS_MAX,
)
from perdure.core.maps import Map, members_of
from perdure.engine.beat import Engine
from perdure.engine.events import EVENT, Incoming, Ingested, IngestEvent, LoggedEvent
from perdure.protocols.durablex.record_pages import Row, find_rows
from perdure.protocols.durablex.requests import bad_request, integer, read_body
from perdure.protocols.durablex.surface import DurablexSurface
from perdure.protocols.durablex.views import event_view, ingested_view
from perdure.web.message import HttpError, Request, Response


class EventBody(Struct, rename="camel"):
    """The body of an event."""

    name: str
    app: str | None = None
    runner: str | None = None
    target_app: str | None = None
    dedupe_id: str | None = None
    session: str | None = None
    tags: Map[str] | None = None
    data: Raw | UnsetType = UNSET


_body_decoder = msgspec.json.Decoder(EventBody)


class Events:
    """The routes under /events."""

    def __init__(self, engine: Engine, surface: DurablexSurface) -> None:
        self._engine = engine
        self._surface = surface

    async def ingest(self, request: Request) -> Response:
        """POST /events."""
        body = read_body(request, _body_decoder)
        _require_fitting(body)
        incoming = Incoming(
            namespace=request.namespace,
            name=body.name,
            data=None if body.data is UNSET else bytes(body.data),
            app=recorded_app(body.app, body.target_app),
            target=target_app(body.app, body.target_app),
            pin=body.runner or "",
            dedupe_id=body.dedupe_id,
            session=body.session,
            tags=members_of(body.tags),
        )
        ingested: Ingested = await self._engine.submit(IngestEvent(incoming))
        return self._surface.answer(202, ingested_view(ingested))

    async def find(self, request: Request) -> Response:
        """GET /events, newest first."""
        query = request.query
        limit = integer(query, "limit", 1, LIST_PAGE_SIZE_MAX, LIST_PAGE_SIZE_DEFAULT)
        app, name = query.get("app") or None, query.get("name") or None

        def show(key: str, event: LoggedEvent) -> Row | None:
            fits = app in (None, event.app) and name in (None, event.name)
            return event_view(key, event) if fits else None

        rows, _ = await find_rows(EVENT, self._engine.store, request.namespace, show, limit=limit)
        return self._surface.answer(200, rows)

    async def show(self, request: Request) -> Response:
        """GET /events/{id}."""
        event_id = request.params["event_id"]
        event = await EVENT.read(self._engine.store, request.namespace, event_id)
        if event is None:
            raise HttpError(404, "event_not_found", f"there is no event {event_id[:64]}")
        return self._surface.answer(200, event_view(event_id, event))


def _require_fitting(body: EventBody) -> None:
    if not body.name.strip():
        raise bad_request("name must not be blank")
    if is_reserved(body.name):
        raise bad_request(f"only the engine raises {body.name[:64]}")
    for field in ("name", "app", "runner", "target_app", "dedupe_id", "session"):
        value = getattr(body, field)
        if value is not None and len(value) > NAME_LENGTH_MAX:
            raise bad_request(f"{field} has more than {NAME_LENGTH_MAX} characters")
    if body.data is not UNSET and len(body.data) > EVENT_DATA_BYTES_MAX:
        raise HttpError(413, "event_too_large", f"data has more than {EVENT_DATA_BYTES_MAX} bytes")
    require_tags(members_of(body.tags))


def require_tags(tags: dict[str, str]) -> None:
    """Refuse too many tags, or tags that are too long."""
    if len(tags) > TAGS_MAX:
        raise bad_request(f"there are more than {TAGS_MAX} tags")
    for key, value in tags.items():
        if len(key) > TAG_KEY_LENGTH_MAX or len(value) > TAG_VALUE_LENGTH_MAX:
            raise bad_request(f"tag {key[:64]} is too long")
