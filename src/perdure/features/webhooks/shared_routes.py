"""Parts that the handlers of outgoing and incoming webhooks share."""

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from perdure.clock import Clock
from perdure.engine.beat import Engine
from perdure.features.webhooks.secrets import Secrets
from perdure.features.webhooks.views import short
from perdure.identity import IdSource
from perdure.protocols.durablex.surface import DurablexSurface

PAGE = 200


class WebhookHandlers:
    """Base of the handlers of endpoints and sources, which have secrets."""

    def __init__(
        self,
        engine: Engine,
        surface: DurablexSurface,
        clock: Clock,
        ids: IdSource,
        secrets: Secrets,
    ) -> None:
        self._engine = engine
        self._surface = surface
        self._clock = clock
        self._ids = ids
        self._secrets = secrets


class Patch(Struct, rename="camel"):
    """A partial change; absent members stay as they are."""

    name: str | UnsetType | None = UNSET
    app: str | UnsetType | None = UNSET
    enabled: bool | UnsetType = UNSET
    secret: str | UnsetType = UNSET
    rotate_secret: bool = False

    def fields(self) -> dict[str, Any]:
        """The changed fields that endpoints and sources share, except the secret."""
        changes: dict[str, Any] = {}
        if self.name is not UNSET:
            changes["name"] = short(self.name, "name")
        if self.app is not UNSET:
            changes["app"] = short(self.app, "app")
        if self.enabled is not UNSET:
            changes["enabled"] = self.enabled
        return changes


def with_secret(view: dict[str, Any], secret: str | None) -> dict[str, Any]:
    """A view with the new secret, if there is one. It is never shown again."""
    return view if secret is None else view | {"secret": secret}
