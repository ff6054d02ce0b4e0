"""Tokens and roles."""

import hmac

import pytest

from perdure.web.auth import ALL_ROLES, NoAuthentication, TokenAuthentication, require_role
from perdure.web.message import HttpError, Principal, Request
from perdure.web.routing import PUBLIC


def a_request(authorization: str | None) -> Request:
    headers = {} if authorization is None else {b"authorization": authorization.encode("latin-1")}
    return Request("GET", b"/", headers)


BY_ROLE = {"worker": "w-token", "operator": "o-token", "admin": "a-token"}


@pytest.mark.parametrize(
    ("authorization", "subject", "roles"),
    [
        ("Bearer w-token", "role:worker", {"worker"}),
        ("bearer o-token", "role:operator", {"operator"}),
        ("BEARER   a-token ", "role:admin", {"admin"}),
        ("Bearer shared", "legacy-token", {"admin"}),
    ],
)
def test_a_token_tells_who_asks(authorization: str, subject: str, roles: set[str]) -> None:
    door = TokenAuthentication(shared="shared", by_role=BY_ROLE)

    principal = door.authenticate(a_request(authorization))

    assert principal.roles == roles
    assert (principal.subject, principal.method) == (subject, "token")


def test_the_only_token_of_a_server_opens_everything() -> None:
    door = TokenAuthentication(shared="shared", by_role={})
    assert door.authenticate(a_request("Bearer shared")).roles == ALL_ROLES


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer nope",
        "Bearer shared2",
        "Bearer share",
        "Bearer SHARED",
        "Basic shared",
        "shared",
        "Bearer \xff\xfe",
    ],
)
def test_anything_else_is_nobody(authorization: str | None) -> None:
    door = TokenAuthentication(shared="shared", by_role=BY_ROLE)

    with pytest.raises(HttpError) as refusal:
        door.authenticate(a_request(authorization))

    assert (refusal.value.status, refusal.value.reason) == (401, "unauthorized")


def test_every_token_is_compared_in_constant_time_whichever_is_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[bytes] = []
    compare = hmac.compare_digest

    def watched(known: bytes, offered: bytes) -> bool:
        compared.append(known)
        return compare(known, offered)

    monkeypatch.setattr("perdure.web.auth.hmac.compare_digest", watched)
    door = TokenAuthentication(shared="shared", by_role=BY_ROLE)
    everything = [b"w-token", b"o-token", b"a-token", b"shared"]

    door.authenticate(a_request("Bearer w-token"))
    assert compared == everything
    compared.clear()
    with pytest.raises(HttpError):
        door.authenticate(a_request("Bearer nope"))
    assert compared == everything


def test_a_key_has_the_scope_of_its_list() -> None:
    door = TokenAuthentication(
        shared="shared", by_role={}, by_scope={"full": ("k1", "k2"), "read": ("k3",)}
    )

    for key, scope in (("k1", "full"), ("k2", "full"), ("k3", "read")):
        principal = door.authenticate(a_request(f"Bearer {key}"))
        assert (principal.subject, principal.roles) == (f"key:{scope}", frozenset({scope}))
    assert door.authenticate(a_request("Bearer shared")).roles == ALL_ROLES


def test_a_door_with_no_token_at_all_cannot_be_built() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        TokenAuthentication(shared=None, by_role={})
    with pytest.raises(ValueError, match="at least one token"):
        TokenAuthentication(shared="", by_role={})


def test_without_authentication_everybody_may_do_everything() -> None:
    principal = NoAuthentication().authenticate(a_request(None))
    assert (principal.subject, principal.roles) == ("anonymous", ALL_ROLES)


def test_a_role_that_a_route_does_not_name_is_refused_and_told_which_are() -> None:
    worker = Principal("role:worker", frozenset({"worker"}), "token")

    require_role(worker, frozenset({"worker", "admin"}))
    require_role(worker, PUBLIC)
    with pytest.raises(HttpError) as refusal:
        require_role(worker, frozenset({"operator", "admin"}))

    assert (refusal.value.status, refusal.value.reason) == (403, "forbidden")
    assert refusal.value.details == {"role": "worker", "allowed_roles": ["admin", "operator"]}


def test_the_mark_of_public_routes_is_a_role_that_nobody_has() -> None:
    assert PUBLIC.isdisjoint(ALL_ROLES)
    assert PUBLIC
