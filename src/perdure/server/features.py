"""The features of this server, one line each, and how they are built from the kernel."""

from collections.abc import Sequence

from perdure.clock import Clock
from perdure.dispatch.egress import Blocked
from perdure.dispatch.record_expiry import RecordExpiry, Rule
from perdure.engine.beat import Engine
from perdure.engine.effects import KERNEL
from perdure.engine.events import EVENT
from perdure.engine.registry import Registry
from perdure.features import approvals, conversations, model_calls, retention, scores, webhooks
from perdure.features.feature import Feature, Kernel, Parts
from perdure.server.settings import Settings, SettingsError

FEATURES: tuple[Feature[Settings], ...] = (
    approvals.FEATURE,
    conversations.FEATURE,
    model_calls.FEATURE,
    retention.FEATURE,
    scores.FEATURE,
    webhooks.FEATURE,
)


def make_registry() -> Registry:
    """The extensions of the kernel and of every feature, as one registry for the engine."""
    return Registry((*KERNEL, *(feature.extension for feature in FEATURES)))


def build_features(kernel: Kernel, settings: Settings) -> list[Parts]:
    """The routes and loops of every feature. Due records are registered with the deadline loop."""
    built: list[Parts] = []
    for feature in FEATURES:
        for kind, rule in feature.extension.when_due.items():
            kernel.deadlines.on_record(kind, rule)
        try:
            built.append(feature.build(kernel, settings))
        except Blocked as error:
            raise SettingsError(f"PERDURE_EGRESS_ALLOW: {error}") from None
    return built


def make_expiry(
    settings: Settings, engine: Engine, clock: Clock, rules: Sequence[Rule]
) -> RecordExpiry | None:
    """The loop that removes old records, if the settings limit the age of any."""
    rules = list(rules)
    if settings.event_retention is not None:
        rules.append(Rule(EVENT, settings.event_retention, lambda one: not one.continues))
    if not rules:
        return None
    return RecordExpiry(engine, clock, settings.default_namespace, rules)
