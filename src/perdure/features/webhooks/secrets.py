"""Secrets of webhooks: made, checked and sealed at the door, shown once, never read again."""

from msgspec import UNSET, UnsetType

from perdure.core.intake.keyring import NONCE_BYTES, Keyring
from perdure.core.limits import NAME_LENGTH_MAX, WEBHOOK_SECRET_LENGTH_MIN
from perdure.features.webhooks.operations import secret_owner
from perdure.identity import IdSource
from perdure.protocols.durablex.requests import bad_request
from perdure.web.message import HttpError


class Secrets:
    """Makes and seals secrets, where there is a key for that."""

    def __init__(self, ids: IdSource, keyring: Keyring | None) -> None:
        self._ids = ids
        self.keyring = keyring

    def require(self) -> Keyring:
        """Refuses where nothing could be sealed."""
        if self.keyring is None:
            raise HttpError(
                403,
                "webhook_keys_missing",
                "this server has no key for the secrets of webhooks: set PERDURE_WEBHOOK_KEYS",
            )
        return self.keyring

    def fresh(self) -> str:
        """A secret that nobody can guess."""
        return f"whsec_{self._ids.token()}"

    def given(self, told: str | None) -> str:
        """The secret of something new: the one that was told, or one of ours."""
        secret = told or self.fresh()
        require_secret(secret)
        return secret

    def seal(self, secret: str, namespace: str, owner_id: str) -> bytes:
        nonce = bytes.fromhex(self._ids.token())[:NONCE_BYTES]
        owner = secret_owner(namespace, owner_id)
        return self.require().seal(secret, owner=owner, nonce=nonce)


def require_secret(secret: str) -> None:
    """Refuse a secret that anybody could guess, or that is a book."""
    if not WEBHOOK_SECRET_LENGTH_MIN <= len(secret) <= NAME_LENGTH_MAX:
        raise bad_request(f"secret has {WEBHOOK_SECRET_LENGTH_MIN} to {NAME_LENGTH_MAX} characters")


def new_secret(told: str | UnsetType, *, rotate: bool, secrets: Secrets) -> str | None:
    """The secret that a patch asks for, if it does."""
    if told is not UNSET:
        require_secret(told)
        return told
    return secrets.fresh() if rotate else None
