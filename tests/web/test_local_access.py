"""A server without credentials answers this machine, and no page of another site."""

import pytest

from perdure.web.local_access import LocalAccess
from perdure.web.message import HttpError, Request

OWN = ["localhost", "LOCALHOST:8080", "app.localhost", "127.0.0.1:8080", "127.8.9.1", "[::1]:8080"]
FOREIGN = [
    "evil.example",
    "evil.example:8080",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "notlocalhost",
    "10.0.0.6:8080",
    "[fd00::2]:8080",
    "",
    ":8080",
    "[::1",
    "2130706433",
]


def refusal(access: LocalAccess, method: str = "GET", **given: str | bool) -> str | None:
    upgrade = given.pop("upgrade", False)
    headers = {name.encode(): str(value).encode() for name, value in given.items()}
    request = Request(method, b"/x", headers, server_address="10.0.0.5")
    request.is_upgrade = bool(upgrade)
    try:
        access.check(request)
    except HttpError as error:
        return error.reason if error.status == 403 else f"{error.reason} as {error.status}"
    return None


@pytest.mark.parametrize("host", [*OWN, "10.0.0.5", "10.0.0.5:8080", "[::ffff:127.0.0.1]:80"])
def test_loopback_names_and_the_address_of_the_connection_are_answered(host: str) -> None:
    for method in ("GET", "POST"):
        assert refusal(LocalAccess(), method, host=host) is None


@pytest.mark.parametrize("host", [host for host in FOREIGN if host != "[::1"])
def test_other_hosts_are_refused_for_reads_too(host: str) -> None:
    for method in ("GET", "HEAD", "POST", "OPTIONS"):
        assert refusal(LocalAccess(), method, host=host) == "host_not_allowed"


def test_an_operator_may_name_further_hosts() -> None:
    access = LocalAccess(["Perdure", "10.0.0.6"])
    assert refusal(access, host="perdure:8080") is None
    assert refusal(access, host="10.0.0.6") is None
    assert refusal(access, host="perdure.evil.example") == "host_not_allowed"


def test_a_request_of_http_1_0_may_have_no_host() -> None:
    assert refusal(LocalAccess(), "POST") is None


ORIGINS = [
    "https://evil.example",
    "http://evil.example:8080",
    "null",
    "",
    "http://localhost",
    "http://localhost:3000",
    "http://127.0.0.1:8080",
    "chrome-extension://localhost",
    "localhost:8080",
]


@pytest.mark.parametrize("origin", ORIGINS)
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_writes_of_foreign_origins_are_refused(method: str, origin: str) -> None:
    access = LocalAccess()
    assert refusal(access, method, host="localhost:8080", origin=origin) == "origin_not_allowed"


@pytest.mark.parametrize("origin", ORIGINS)
def test_websockets_of_foreign_origins_are_refused_and_reads_are_not(origin: str) -> None:
    access, host = LocalAccess(), "localhost:8080"
    assert refusal(access, host=host, origin=origin, upgrade=True) == "origin_not_allowed"
    assert refusal(access, host=host, origin=origin) is None


def test_pages_of_the_server_itself_may_write() -> None:
    access = LocalAccess(["perdure.example"])
    for site in ("localhost:8080", "127.0.0.1:8080", "[::1]:8080", "perdure.example"):
        for scheme in ("http", "https"):
            origin = f"{scheme}://{site}"
            assert refusal(access, "POST", host=site, origin=origin) is None
            assert refusal(access, host=site, origin=origin, upgrade=True) is None


def test_a_host_is_judged_anew_for_every_address_that_is_connected_to() -> None:
    access = LocalAccess()
    for address, is_own in (("10.0.0.5", True), ("10.0.0.6", False), ("10.0.0.5", True)):
        request = Request("GET", b"/x", {b"host": b"10.0.0.5:80"}, server_address=address)
        if is_own:
            access.check(request)
        else:
            with pytest.raises(HttpError, match="loopback"):
                access.check(request)
