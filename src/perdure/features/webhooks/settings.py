"""Settings of webhooks."""

from collections.abc import Sequence
from typing import Protocol

from perdure.core.intake.keyring import Keyring


class WebhookSettings(Protocol):
    """The settings of the server that concern webhooks."""

    @property
    def webhook_keys(self) -> Sequence[str]: ...

    @property
    def egress_allow(self) -> Sequence[str]: ...

    @property
    def delivery_retention(self) -> int | None: ...


def keyring_of(settings: WebhookSettings) -> Keyring | None:
    """The keys that seal webhook secrets, if any are configured."""
    return Keyring(settings.webhook_keys) if settings.webhook_keys else None
