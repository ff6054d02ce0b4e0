"""Who may enter: bearer tokens or signatures, compared in constant time, or nobody is asked."""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from perdure.web.message import HttpError, Principal, Request
from perdure.web.routing import PUBLIC

ALL_ROLES = frozenset({"worker", "operator", "admin"})
READ, FULL = "read", "full"
"""The scopes of API keys. They are roles of their own, which only the push plane knows."""


class Authenticator(Protocol):
    """Tells who a request is from."""

    @property
    def needs_body(self) -> bool:
        """Whether the credential of any request is of its body."""
        ...

    def is_of_body(self, request: Request) -> bool:
        """Whether that of this one is, so that it cannot be authenticated by its head."""
        ...

    def authenticate(self, request: Request) -> Principal: ...


class _ByHead:
    """Credentials that are in the head, always."""

    needs_body = False

    def is_of_body(self, request: Request) -> bool:
        return False


class NoAuthentication(_ByHead):
    """Everybody is an anonymous administrator. For laptops."""

    def __init__(self) -> None:
        self._anyone = Principal("anonymous", ALL_ROLES, "none")

    def authenticate(self, request: Request) -> Principal:
        return self._anyone


class TokenAuthentication(_ByHead):
    """One shared token, a token per role, tokens of named ones, keys of a scope, or all of them."""

    def __init__(
        self,
        *,
        shared: str | None,
        by_role: Mapping[str, str] = MappingProxyType({}),
        by_scope: Mapping[str, Sequence[str]] = MappingProxyType({}),
        by_subject: Mapping[str, Principal] = MappingProxyType({}),
    ) -> None:
        """Of named ones it is the token that stands for somebody."""
        if not shared and not by_role and not by_subject and not any(by_scope.values()):
            raise ValueError("token authentication needs at least one token")
        self._known = [(token.encode(), somebody) for token, somebody in by_subject.items()]
        self._known += _of_roles("token", by_role, shared, is_alone=not by_role and not by_subject)
        for scope, keys in by_scope.items():
            principal = Principal(f"key:{scope}", frozenset({scope}), "token")
            self._known += ((key.encode(), principal) for key in keys)

    def authenticate(self, request: Request) -> Principal:
        header = request.headers.get(b"authorization", b"")
        scheme, _, offered = header.partition(b" ")
        found: Principal | None = None
        if scheme == b"Bearer" or scheme.lower() == b"bearer":
            offered = offered.strip()
            for token, principal in self._known:
                # Every token is compared, so that timing tells nothing about which one is near.
                if hmac.compare_digest(token, offered) and found is None:
                    found = principal
        if found is None:
            raise HttpError(401, "unauthorized", "a valid bearer token is required")
        return found


class SignatureAuthentication:
    """Requests whose body is signed with a shared key or with that of a role.

    The signature is of the body and of nothing else, so it must not be seen by others on its way.
    API keys of the push plane, whose clients cannot sign, are bearer tokens here, too.
    """

    def __init__(
        self,
        *,
        shared: str | None,
        by_role: Mapping[str, str],
        tokens: TokenAuthentication | None = None,
    ) -> None:
        if not shared and not by_role and tokens is None:
            raise ValueError("signatures need at least one key")
        self._known = _of_roles("signature", by_role, shared, is_alone=not by_role)
        self._tokens = tokens

    needs_body = True

    def is_of_body(self, request: Request) -> bool:
        return b"x-signature" in request.headers

    def authenticate(self, request: Request) -> Principal:
        offered = request.headers.get(b"x-signature")
        if offered is None and self._tokens is not None:
            return self._tokens.authenticate(request)
        found: Principal | None = None
        for key, principal in self._known:
            expected = hmac.new(key, request.body, hashlib.sha256).hexdigest().encode()
            if hmac.compare_digest(expected, offered or b"") and found is None:
                found = principal
        if found is None:
            raise HttpError(401, "unauthorized", "a valid signature of the body is required")
        return found


def _of_roles(
    method: str, by_role: Mapping[str, str], shared: str | None, *, is_alone: bool
) -> list[tuple[bytes, Principal]]:
    """Secrets of roles, and one that is nobody's."""
    known = [
        (secret.encode(), Principal(f"role:{role}", frozenset({role}), method))
        for role, secret in by_role.items()
    ]
    if shared:
        # Beside others the shared one is an administrator's, without the worker plane.
        roles = ALL_ROLES if is_alone else frozenset({"admin"})
        known.append((shared.encode(), Principal(f"legacy-{method}", roles, method)))
    return known


def require_role(principal: Principal, roles: frozenset[str]) -> None:
    """Refuse a principal that has none of a route's roles."""
    if roles is PUBLIC or not principal.roles.isdisjoint(roles):
        return
    raise HttpError(
        403,
        "forbidden",
        "this credential may not use this route",
        {"role": min(principal.roles, default=None), "allowed_roles": sorted(roles)},
    )
