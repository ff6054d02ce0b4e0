"""Webhooks: deliveries to endpoints of users, and events that other systems post to sources."""

from perdure.core.push.effect import Broken, Ended, Posted
from perdure.dispatch.egress import EgressGuard, SystemResolver
from perdure.dispatch.outgoing_http import Outgoing
from perdure.dispatch.record_expiry import Rule
from perdure.engine.events import ExpireDedupeId
from perdure.engine.registry import Extension
from perdure.features.feature import Feature, Kernel, Parts
from perdure.features.webhooks.delivery_operations import DELIVERY
from perdure.features.webhooks.effect_operations import PostWebhook, announce_end, announce_failure
from perdure.features.webhooks.endpoint_routes import Webhooks
from perdure.features.webhooks.incoming_routes import Sources
from perdure.features.webhooks.loops import WebhookSender
from perdure.features.webhooks.operations import RECEIVED, REFUSALS
from perdure.features.webhooks.routes import webhook_routes
from perdure.features.webhooks.secrets import Secrets
from perdure.features.webhooks.settings import WebhookSettings, keyring_of


def _build(kernel: Kernel, settings: WebhookSettings) -> Parts:
    engine, clock, ids, surface = kernel.engine, kernel.clock, kernel.ids, kernel.push_surface
    keyring = keyring_of(settings)
    guard = EgressGuard(SystemResolver(), settings.egress_allow)
    sender = WebhookSender(engine, clock, guard, Outgoing(), keyring)
    kernel.deadlines.on_record(DELIVERY.name, sender.due, sender.decided)
    secrets = Secrets(ids, keyring)
    routes = webhook_routes(
        surface,
        Webhooks(engine, surface, clock, ids, secrets, guard),
        Sources(engine, surface, clock, ids, secrets),
    )
    return Parts(routes=routes, loops=[("deliveries", sender)], expiry=expiry_rules(settings))


def expiry_rules(settings: WebhookSettings) -> list[Rule]:
    """The retention of ended deliveries and received webhooks, if there is one."""
    age = settings.delivery_retention
    if age is None:
        return []
    return [Rule(DELIVERY, age, lambda one: bool(one.is_settled)), Rule(RECEIVED, age)]


FEATURE: Feature[WebhookSettings] = Feature(
    extension=Extension(
        name="webhooks",
        follow_ups={Posted: PostWebhook, Ended: announce_end, Broken: announce_failure},
        when_due={RECEIVED.name: ExpireDedupeId, REFUSALS.name: ExpireDedupeId},
    ),
    build=_build,
)
