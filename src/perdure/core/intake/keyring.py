"""Secrets at rest: encrypted with a master key that is not in the store.

A sealed secret is bound to its owner: moved to another row, it cannot be opened. It names the key
that sealed it by a few bytes; older keys still open the secrets that they sealed. The caller passes
the nonce: nothing here is random.
"""

import hashlib
import hmac
from collections.abc import Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

MASTER_KEY_LENGTH_MIN = 32
NONCE_BYTES = 12
_VERSION = b"\x01"
_NAME_BYTES = 4


class CannotOpen(ValueError):
    """Sealed with an unknown key or for another owner, or damaged."""


class Keyring:
    """The master key, and older ones for opening. All are texts of at least 32 characters."""

    def __init__(self, keys: Sequence[str]) -> None:
        if not keys:
            raise ValueError("there is no master key")
        if any(len(key) < MASTER_KEY_LENGTH_MIN for key in keys):
            raise ValueError(f"a master key has at least {MASTER_KEY_LENGTH_MIN} characters")
        derived = [_derived(key) for key in keys]
        self._current = _name(derived[0])
        self._ciphers = {_name(key): ChaCha20Poly1305(key) for key in derived}

    def seal(self, secret: str, *, owner: str, nonce: bytes) -> bytes:
        """Encrypt a secret for the store. `owner` names what it belongs to, and never changes."""
        assert len(nonce) == NONCE_BYTES
        head = _VERSION + self._current
        sealed = self._ciphers[self._current].encrypt(nonce, secret.encode(), head + owner.encode())
        return head + nonce + sealed

    def open(self, sealed: bytes, *, owner: str) -> str:
        """Decrypt a secret of this owner. Raises CannotOpen."""
        head, rest = sealed[: 1 + _NAME_BYTES], sealed[1 + _NAME_BYTES :]
        cipher = self._ciphers.get(head[1:])
        if head[:1] != _VERSION or cipher is None or len(rest) < NONCE_BYTES:
            raise CannotOpen("sealed with a key that this server does not have")
        nonce, text = rest[:NONCE_BYTES], rest[NONCE_BYTES:]
        try:
            return cipher.decrypt(nonce, text, head + owner.encode()).decode()
        except InvalidTag:
            raise CannotOpen("damaged, or sealed for another owner") from None

    def is_current(self, sealed: bytes) -> bool:
        """Whether the newest key sealed it."""
        return sealed[: 1 + _NAME_BYTES] == _VERSION + self._current


def _derived(key: str) -> bytes:
    """The encryption key, by HKDF-SHA256 with one block."""
    extracted = hmac.new(b"perdure", key.encode(), hashlib.sha256).digest()
    return hmac.new(extracted, b"sealed secrets\x01", hashlib.sha256).digest()


def _name(key: bytes) -> bytes:
    return hashlib.sha256(b"name" + key).digest()[:_NAME_BYTES]
