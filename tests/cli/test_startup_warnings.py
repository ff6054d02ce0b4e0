"""Open servers and weak credentials are named at start, and no credential is shown."""

from typing import Any

import pytest

from perdure.server.credentials import PrincipalToken
from perdure.server.settings import Settings
from perdure.server.startup_warnings import is_loopback, startup_warnings

GOOD = "x7Qm" * 8
OTHER = "k2Lp" * 8


def warned(**settings: Any) -> list[str]:
    return startup_warnings(Settings(**{"auth_driver": "token", "host": "0.0.0.0", **settings}))


def test_good_credentials_are_not_mentioned() -> None:
    assert warned(auth_token=GOOD, api_keys=(OTHER,)) == []
    assert warned(role_tokens={"worker": GOOD, "operator": OTHER}) == []
    assert warned(auth_driver="signature", signature_key=GOOD) == []


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "perdure.example"])
def test_a_server_without_credentials_that_others_can_reach_is_loud(host: str) -> None:
    (line,) = warned(auth_driver="none", host=host)
    assert line.startswith(f"ANYONE who can reach {host} controls this server")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_a_server_without_credentials_on_loopback_is_quiet(host: str) -> None:
    assert is_loopback(host)
    assert warned(auth_driver="none", host=host) == []


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"auth_token": "short"}, "DW_AUTH_TOKEN"),
        ({"auth_token": "y" * 15}, "DW_AUTH_TOKEN"),
        ({"role_tokens": {"worker": "short"}}, "DW_WORKER_TOKEN"),
        ({"auth_token": GOOD, "api_keys": ("short",)}, "a key in PERDURE_API_KEYS"),
        ({"auth_token": GOOD, "read_keys": ("short",)}, "a key in PERDURE_READ_KEYS"),
        ({"auth_driver": "signature", "signature_key": "short"}, "DW_SIGNATURE_KEY"),
        (
            {"auth_driver": "signature", "role_signature_keys": {"admin": "short"}},
            "DW_ADMIN_SIGNATURE_KEY",
        ),
        (
            {"principals": (PrincipalToken("short", "ann", frozenset({"operator"})),)},
            "the token of ann in DW_PRINCIPAL_TOKENS",
        ),
    ],
)
def test_a_short_credential_is_named_and_not_shown(settings: dict[str, Any], name: str) -> None:
    (line,) = warned(**settings)
    assert line.startswith(f"{name} has fewer than 16 characters")
    assert "short" not in line.replace("fewer", "")


def test_sixteen_characters_are_enough() -> None:
    assert warned(auth_token="y" * 16) == []


def test_a_credential_of_two_roles_is_named() -> None:
    (line,) = warned(role_tokens={"worker": GOOD, "admin": GOOD})
    assert line.startswith("DW_WORKER_TOKEN and DW_ADMIN_TOKEN are the same credential")
    assert GOOD not in line


def test_a_placeholder_is_named_where_others_can_reach_it() -> None:
    (line,) = warned(auth_token="change-me")
    assert line.startswith("DW_AUTH_TOKEN is a well-known placeholder")
    (line,) = warned(auth_token="change-me", host="127.0.0.1")
    assert line.startswith("DW_AUTH_TOKEN has fewer than 16 characters")


def test_a_shared_token_that_opens_nothing_is_not_mentioned() -> None:
    assert warned(auth_token="short", shared_credential=False, role_tokens={"admin": GOOD}) == []
