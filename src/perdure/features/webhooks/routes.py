"""The routes of webhooks, outgoing and incoming, and the roles that may use them."""

from perdure.features.webhooks.endpoint_routes import Webhooks
from perdure.features.webhooks.incoming_routes import Sources
from perdure.protocols.durablex.routes import FULL, READER
from perdure.protocols.durablex.surface import DurablexSurface
from perdure.web.routing import PUBLIC, Route


def webhook_routes(surface: DurablexSurface, webhooks: Webhooks, sources: Sources) -> list[Route]:
    """Every route, with its roles. The public one checks a signature."""
    return [
        *_outgoing(surface, webhooks),
        *_configured(surface, sources, "/webhook-sources"),
        *_configured(surface, sources, "/webhook-receivers"),
        *_received(surface, sources),
        Route("POST", "/webhooks/{token}", PUBLIC, surface, sources.receive),
    ]


def _outgoing(surface: DurablexSurface, webhooks: Webhooks) -> list[Route]:
    endpoints = "/webhook-endpoints"
    endpoint, deliveries = f"{endpoints}/{{endpoint_id}}", "/webhook-deliveries"
    return [
        Route("GET", endpoints, READER, surface, webhooks.endpoints),
        Route("POST", endpoints, FULL, surface, webhooks.add_endpoint),
        Route("GET", f"{endpoints}/stats", READER, surface, webhooks.stats),
        Route("GET", endpoint, READER, surface, webhooks.endpoint),
        Route("PATCH", endpoint, FULL, surface, webhooks.change_endpoint),
        Route("DELETE", endpoint, FULL, surface, webhooks.remove_endpoint),
        Route("GET", deliveries, READER, surface, webhooks.deliveries),
        Route("GET", f"{deliveries}/{{delivery_id}}", READER, surface, webhooks.delivery),
        Route("POST", f"{deliveries}/{{delivery_id}}/redeliver", FULL, surface, webhooks.redeliver),
    ]


def _configured(surface: DurablexSurface, sources: Sources, path: str) -> list[Route]:
    """The routes of sources under one path; older clients call sources receivers."""
    source = f"{path}/{{source_id}}"
    return [
        Route("GET", path, READER, surface, sources.sources),
        Route("POST", path, FULL, surface, sources.add_source),
        Route("GET", source, READER, surface, sources.source),
        Route("PATCH", source, FULL, surface, sources.change_source),
        Route("DELETE", source, FULL, surface, sources.remove_source),
    ]


def _received(surface: DurablexSurface, sources: Sources) -> list[Route]:
    path = "/webhook-source-deliveries"
    received = f"{path}/{{received_id}}"
    return [
        Route("GET", path, READER, surface, sources.received),
        Route("GET", received, READER, surface, sources.show_received),
        Route("POST", f"{received}/replay", FULL, surface, sources.replay),
    ]
