"""Who may enter: bearer tokens with roles, compared in constant time, or nobody asked at all."""

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

    def authenticate(self, request: Request) -> Principal: ...


class NoAuthentication:
    """Everybody is an anonymous administrator. For laptops."""

    def __init__(self) -> None:
        self._anyone = Principal("anonymous", ALL_ROLES, "none")

    def authenticate(self, request: Request) -> Principal:
        return self._anyone


class TokenAuthentication:
    """One shared token, a token per role, keys of a scope, or all of them."""

    def __init__(
        self,
        *,
        shared: str | None,
        by_role: dict[str, str],
        by_scope: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ) -> None:
        if not shared and not by_role and not any(by_scope.values()):
            raise ValueError("token authentication needs at least one token")
        self._known: list[tuple[bytes, Principal]] = [
            (token.encode(), Principal(f"role:{role}", frozenset({role}), "token"))
            for role, token in by_role.items()
        ]
        if shared:
            # Beside role tokens the shared one is an administrator's, without the worker plane.
            roles = ALL_ROLES if not by_role else frozenset({"admin"})
            self._known.append((shared.encode(), Principal("legacy-token", roles, "token")))
        for scope, keys in by_scope.items():
            principal = Principal(f"key:{scope}", frozenset({scope}), "token")
            self._known += ((key.encode(), principal) for key in keys)

    def authenticate(self, request: Request) -> Principal:
        header = request.headers.get(b"authorization", b"")
        scheme, _, offered = header.partition(b" ")
        found: Principal | None = None
        if scheme.lower() == b"bearer":
            offered = offered.strip()
            for token, principal in self._known:
                # Every token is compared, so that timing tells nothing about which one is near.
                if hmac.compare_digest(token, offered) and found is None:
                    found = principal
        if found is None:
            raise HttpError(401, "unauthorized", "a valid bearer token is required")
        return found


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
