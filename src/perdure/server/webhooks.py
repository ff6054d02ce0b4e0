"""What webhooks need, built from the settings."""

from perdure.clock import Clock
from perdure.core.intake.keyring import Keyring
from perdure.dispatch.deadlines import DeadlineLoop
from perdure.dispatch.egress import Blocked, EgressGuard, RunnerGuard, SystemResolver
from perdure.dispatch.outgoing_http import Outgoing
from perdure.dispatch.record_expiry import RecordExpiry, Rule
from perdure.engine.beat import Engine
from perdure.engine.events import EVENT
from perdure.features.webhooks.delivery_operations import DELIVERY
from perdure.features.webhooks.endpoint_routes import Webhooks
from perdure.features.webhooks.incoming_routes import Sources
from perdure.features.webhooks.loops import WebhookSender
from perdure.features.webhooks.operations import RECEIVED
from perdure.features.webhooks.routes import webhook_routes
from perdure.features.webhooks.secrets import Secrets
from perdure.identity import IdSource
from perdure.protocols.durablex.surface import DurablexSurface
from perdure.server.settings import Settings, SettingsError
from perdure.web.routing import Route


def make_keyring(settings: Settings) -> Keyring | None:
    """The keys of webhook secrets, if there are any."""
    return Keyring(settings.webhook_keys) if settings.webhook_keys else None


def make_guard(settings: Settings) -> EgressGuard:
    """Who says where webhooks may go."""
    try:
        return EgressGuard(SystemResolver(), settings.egress_allow)
    except Blocked as error:
        raise SettingsError(f"PERDURE_EGRESS_ALLOW: {error}") from None


def make_runner_guard(settings: Settings) -> RunnerGuard:
    """Says at which addresses runners may be posted to."""
    try:
        return RunnerGuard(SystemResolver(), settings.runner_allow)
    except Blocked as error:
        raise SettingsError(f"PERDURE_RUNNER_ALLOW: {error}") from None


def make_deliverer(
    settings: Settings, engine: Engine, clock: Clock, deadlines: DeadlineLoop
) -> WebhookSender:
    """Who sends, listening to the one clock."""
    guard, keyring = make_guard(settings), make_keyring(settings)
    webhook_sender = WebhookSender(engine, clock, guard, Outgoing(), keyring)
    deadlines.on_record(DELIVERY.name, webhook_sender.due, webhook_sender.decided)
    return webhook_sender


def make_forgetter(settings: Settings, engine: Engine, clock: Clock) -> RecordExpiry | None:
    """Who forgets what is older than the settings say, if they say anything."""
    rules: list[Rule] = []
    if settings.event_retention is not None:
        rules.append(Rule(EVENT, settings.event_retention, lambda one: not one.continues))
    if settings.delivery_retention is not None:
        age = settings.delivery_retention
        rules += [Rule(DELIVERY, age, lambda one: bool(one.is_settled)), Rule(RECEIVED, age)]
    return RecordExpiry(engine, clock, settings.default_namespace, rules) if rules else None


def make_webhook_routes(
    settings: Settings, engine: Engine, surface: DurablexSurface, clock: Clock, ids: IdSource
) -> list[Route]:
    """Where webhooks are configured, looked at and received."""
    secrets = Secrets(ids, make_keyring(settings))
    return webhook_routes(
        surface,
        Webhooks(engine, surface, clock, ids, secrets, make_guard(settings)),
        Sources(engine, surface, clock, ids, secrets),
    )
