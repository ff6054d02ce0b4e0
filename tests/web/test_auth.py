"""Tokens and roles."""

import hmac

import pytest

from perdure.web.auth import (
    ALL_ROLES,
    NoAuthentication,
    SignatureAuthentication,
    TokenAuthentication,
    require_role,
)
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


def test_a_token_may_name_who_holds_it_beside_all_others() -> None:
    ann = Principal("ann", frozenset({"worker", "operator"}), "token")
    door = TokenAuthentication(
        shared="shared", by_role={"worker": "w-token"}, by_subject={"a1": ann, "a2": ann}
    )

    for token, subject in (("a1", "ann"), ("a2", "ann"), ("w-token", "role:worker")):
        assert door.authenticate(a_request(f"Bearer {token}")).subject == subject
    alone = TokenAuthentication(shared="shared", by_subject={"a1": ann})
    assert alone.authenticate(a_request("Bearer shared")).roles == {"admin"}


def signed(body: bytes, key: str) -> Request:
    signature = hmac.new(key.encode(), body, "sha256").hexdigest().encode()
    return Request("POST", b"/", {b"x-signature": signature}, body=body)


def test_a_signature_tells_whose_key_it_was() -> None:
    door = SignatureAuthentication(shared="k", by_role={"worker": "wk", "admin": "ak"})

    for key, subject, roles in (
        ("wk", "role:worker", {"worker"}),
        ("ak", "role:admin", {"admin"}),
        ("k", "legacy-signature", {"admin"}),
    ):
        for body in (b"", b'{"a": 1}'):
            principal = door.authenticate(signed(body, key))
            assert principal.roles == roles
            assert principal.subject == subject
            assert principal.method == "signature"
    only = SignatureAuthentication(shared="k", by_role={})
    assert only.authenticate(signed(b"", "k")).roles == ALL_ROLES


def test_a_signature_of_something_else_is_nobodys() -> None:
    tokens = TokenAuthentication(shared=None, by_scope={"read": ("r",)})
    door = SignatureAuthentication(shared="k", by_role={}, tokens=tokens)
    right = signed(b"body", "k").headers[b"x-signature"]

    assert door.authenticate(a_request("Bearer r")).roles == {"read"}
    for headers in (
        {},
        {b"x-signature": b""},
        {b"x-signature": right.upper()},
        {b"x-signature": b"\xff" * 64},
        {b"x-signature": signed(b"other", "k").headers[b"x-signature"]},
        {b"x-signature": b"", b"authorization": b"Bearer r"},
        {b"authorization": b"Bearer k"},
    ):
        with pytest.raises(HttpError) as refusal:
            door.authenticate(Request("POST", b"/", headers, body=b"body"))
        assert (refusal.value.status, refusal.value.reason) == (401, "unauthorized")
    with pytest.raises(ValueError, match="at least one key"):
        SignatureAuthentication(shared=None, by_role={})


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
