"""What the handlers of webhooks share, whichever way webhooks go."""

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
    """Handlers of things that have a secret."""

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
    """What is to change; what is absent stays."""

    name: str | UnsetType | None = UNSET
    app: str | UnsetType | None = UNSET
    enabled: bool | UnsetType = UNSET
    secret: str | UnsetType = UNSET
    rotate_secret: bool = False

    def fields(self) -> dict[str, Any]:
        """What is told of what endpoints and sources both have, but for the secret."""
        told: dict[str, Any] = {}
        if self.name is not UNSET:
            told["name"] = short(self.name, "name")
        if self.app is not UNSET:
            told["app"] = short(self.app, "app")
        if self.enabled is not UNSET:
            told["enabled"] = self.enabled
        return told


def with_secret(view: dict[str, Any], secret: str | None) -> dict[str, Any]:
    """A view with the secret that was just made, if one was: nobody sees it again."""
    return view if secret is None else view | {"secret": secret}
