"""Principal tokens: tokens with a subject and roles. Error messages never show a token."""

from typing import Any

import msgspec
from msgspec import Struct

ROLES = ("worker", "operator", "admin")
NAME = "DW_PRINCIPAL_TOKENS"
PRINCIPAL_TOKENS_MAX = 256
"""Bounded, because every request is compared with every token."""
_SUBJECT_LENGTH_MAX = 255


class CredentialsError(ValueError):
    """The list of tokens is not valid; the message says why."""


class PrincipalToken(Struct, frozen=True):
    """A token, its subject and its roles."""

    token: str
    subject: str
    roles: frozenset[str]

    def __repr__(self) -> str:
        return f"PrincipalToken(subject={self.subject!r}, roles={sorted(self.roles)})"


class _Entry(Struct):
    # The other members describe the principal to people; the server does not use them.
    subject: str
    roles: list[str]
    token: str | None = None
    tenant: str | None = None
    label: str | None = None
    claims: dict[str, Any] | None = None


def parse_principal_tokens(text: str) -> tuple[PrincipalToken, ...]:
    """The tokens of a JSON list of entries, or of an object with an entry for each token."""
    try:
        entries = msgspec.json.decode(text, type=list[_Entry] | dict[str, _Entry])
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise CredentialsError(f"{NAME} is a list of principals in JSON; {error}") from None
    pairs: list[tuple[str | None, _Entry]]
    if isinstance(entries, dict):
        pairs = list(entries.items())
    else:
        pairs = [(entry.token, entry) for entry in entries]
    if len(pairs) > PRINCIPAL_TOKENS_MAX:
        raise CredentialsError(f"{NAME} has at most {PRINCIPAL_TOKENS_MAX} entries")
    found = tuple(
        _principal(token, entry, number) for number, (token, entry) in enumerate(pairs, start=1)
    )
    if len({each.token for each in found}) < len(found):
        raise CredentialsError(f"{NAME} has the same token twice")
    return found


def _principal(token: str | None, entry: _Entry, number: int) -> PrincipalToken:
    def wrong(problem: str) -> CredentialsError:
        return CredentialsError(f"{NAME}, entry {number}: {problem}")

    if not token or not token.isprintable() or token != token.strip():
        raise wrong("it has no token, or one that no header can carry")
    if not entry.subject.strip() or len(entry.subject) > _SUBJECT_LENGTH_MAX:
        raise wrong(f"a subject has 1 to {_SUBJECT_LENGTH_MAX} characters")
    if not entry.roles or not set(entry.roles) <= set(ROLES):
        raise wrong(f"roles are some of {', '.join(ROLES)}")
    return PrincipalToken(token, entry.subject, frozenset(entry.roles))
