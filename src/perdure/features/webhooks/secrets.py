"""Webhook secrets: made, checked and sealed with the request; shown once, never returned again."""

from msgspec import UNSET, UnsetType

from perdure.core.intake.keyring import NONCE_BYTES, Keyring
from perdure.core.limits import NAME_LENGTH_MAX, WEBHOOK_SECRET_LENGTH_MIN
from perdure.features.webhooks.operations import secret_owner
from perdure.identity import IdSource
from perdure.protocols.durablex.requests import bad_request
from perdure.web.message import HttpError


class Secrets:
    """Makes and seals secrets, if a key is configured."""

    def __init__(self, ids: IdSource, keyring: Keyring | None) -> None:
        self._ids = ids
        self.keyring = keyring

    def require(self) -> Keyring:
        """The keyring. Refuses the request if there is none."""
        if self.keyring is None:
            raise HttpError(
                403,
                "webhook_keys_missing",
                "this server has no key for webhook secrets: set PERDURE_WEBHOOK_KEYS",
            )
        return self.keyring

    def generate(self) -> str:
        """A new random secret."""
        return f"whsec_{self._ids.token()}"

    def choose(self, requested: str | None) -> str:
        """The secret of a new endpoint or source: from the request, or a generated one."""
        secret = requested or self.generate()
        require_secret(secret)
        return secret

    def seal(self, secret: str, namespace: str, owner_id: str) -> bytes:
        nonce = bytes.fromhex(self._ids.token())[:NONCE_BYTES]
        owner = secret_owner(namespace, owner_id)
        return self.require().seal(secret, owner=owner, nonce=nonce)


def require_secret(secret: str) -> None:
    """Refuse a secret that is too short to be safe, or too long."""
    if not WEBHOOK_SECRET_LENGTH_MIN <= len(secret) <= NAME_LENGTH_MAX:
        raise bad_request(f"secret has {WEBHOOK_SECRET_LENGTH_MIN} to {NAME_LENGTH_MAX} characters")


def new_secret(requested: str | UnsetType, *, rotate: bool, secrets: Secrets) -> str | None:
    """The new secret that a patch asks for, if it does."""
    if requested is not UNSET:
        require_secret(requested)
        return requested
    return secrets.generate() if rotate else None
