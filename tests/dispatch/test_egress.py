"""Nothing is sent to the inside, however its address is dressed."""

import asyncio
from collections.abc import Sequence

import pytest

from perdure.dispatch.egress import (
    Blocked,
    EgressGuard,
    RunnerGuard,
    Target,
    Unresolved,
    Vetted,
    read_target,
)


class Book:
    """A resolver with a list of names; addresses are their own names."""

    def __init__(self, **names: Sequence[str]) -> None:
        self.names = names
        self.asked: list[str] = []

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        if host == "nowhere":
            raise OSError("no such name")
        return self.names.get(host.replace(".", "_"), [host])


def vet(guard: EgressGuard, url: str) -> Vetted:
    return asyncio.run(guard.vet(url))


PUBLIC = ["93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946", "::ffff:93.184.216.34"]
INSIDE = [
    "127.0.0.1",
    "127.8.8.8",
    "0.0.0.0",
    "10.1.2.3",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "192.0.0.1",
    "192.0.0.9",
    "192.0.0.170",
    "168.63.129.16",
    "3fff::1",
    "3fff:fff:ffff::1",
    "192.0.2.1",
    "198.18.0.1",
    "203.0.113.5",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "192.88.99.1",
    "::",
    "::1",
    "fe80::1",
    "fe80::1%eth0",
    "fc00::1",
    "fd12:3456::1",
    "fec0::1",
    "ff02::1",
    "2001:db8::1",
    "2001::1",
    "100::1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "::127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::1",
    "2002:7f00:1::",
    "2002:c0a8:101::1",
    "rubbish",
]


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_fine(address: str) -> None:
    vetted = vet(EgressGuard(Book(example_com=[address])), "https://example.com/a?b=c")
    assert vetted == (Target("https", "example.com", 443, "/a?b=c"), (address,))


@pytest.mark.parametrize("address", INSIDE)
def test_addresses_inside_are_blocked(address: str) -> None:
    guard = EgressGuard(Book(example_com=[PUBLIC[0], address]))
    with pytest.raises(Blocked, match="not a public address"):
        vet(guard, "http://example.com")


def test_a_name_is_looked_up_once() -> None:
    book = Book(example_com=PUBLIC)
    vetted = vet(EgressGuard(book), "http://example.com")
    assert book.asked == ["example.com"]
    assert vetted.addresses == tuple(PUBLIC)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://example.com", "only http and https"),
        ("file:///etc/passwd", "only http and https"),
        ("//example.com", "only http and https"),
        ("example.com", "only http and https"),
        ("", "only http and https"),
        ("http://", "no host"),
        ("http:///x", "no host"),
        ("http://user:pw@example.com", "credentials"),
        ("http://user@example.com", "credentials"),
        ("http://@example.com", "credentials"),
        ("http://example.com:0", "no host"),
        ("http://example.com:99999", "cannot be parsed"),
        ("http://example.com:x", "cannot be parsed"),
        ("http://[::1", "cannot be parsed"),
        ("http://[fe80::1%25eth0]/", "zone"),
        ("http://exa mple.com", "blanks"),
        ("http://example.com/\r\nX: y", "blanks"),
        ("http://example.com\\@127.0.0.1/", "backslashes"),
        ("http://" + "a" * 3_000, "more than"),
        ("http://" + "ü" * 70 + ".com", "no name can have"),
    ],
)
def test_urls_that_are_never_sent_to(url: str, why: str) -> None:
    with pytest.raises(Blocked, match=why):
        read_target(url)


@pytest.mark.parametrize(
    ("url", "target", "authority"),
    [
        ("http://Example.COM", Target("http", "example.com", 80, "/"), "example.com"),
        ("HTTPS://a.b:8443/x#frag", Target("https", "a.b", 8443, "/x"), "a.b:8443"),
        (
            "http://a.b./é?q=ü x".replace(" ", "%20"),
            Target("http", "a.b", 80, "/%C3%A9?q=%C3%BC%20x"),
            "a.b",
        ),
        ("http://[2001:DB8::1]:81/", Target("http", "2001:db8::1", 81, "/"), "[2001:db8::1]:81"),
        (
            "http://bücher.example/",
            Target("http", "xn--bcher-kva.example", 80, "/"),
            "xn--bcher-kva.example",
        ),
    ],
)
def test_urls_are_taken_apart(url: str, target: Target, authority: str) -> None:
    assert read_target(url) == target
    assert target.authority == authority


def test_the_operator_may_allow_names_and_networks() -> None:
    book = Book(inside_corp=["10.1.2.3"])
    with pytest.raises(Blocked):
        vet(EgressGuard(book), "http://inside.corp")
    with pytest.raises(Blocked):
        vet(EgressGuard(book, ["10.2.0.0/16", "other.corp"]), "http://inside.corp")
    for entry in ("10.1.0.0/16", "10.1.2.3", "Inside.corp"):
        vetted = vet(EgressGuard(book, [entry]), "http://inside.corp")
        assert vetted.addresses == ("10.1.2.3",)
    assert (vet(EgressGuard(Book(), ["127.0.0.0/8"]), "http://[::ffff:127.0.0.1]:5/")).addresses


def test_a_name_that_leads_nowhere() -> None:
    with pytest.raises(Unresolved, match="cannot be resolved"):
        vet(EgressGuard(Book()), "http://nowhere")
    with pytest.raises(Unresolved, match="no address"):
        vet(EgressGuard(Book(empty=[])), "http://empty")


LITERALS = [
    ("http://127.0.0.1/x", True),
    ("http://127.1/x", True),
    ("http://2130706433/x", True),
    ("http://0x7f000001/x", True),
    ("http://0177.0.0.1/x", True),
    ("http://[::1]:8080/x", True),
    ("http://[::ffff:10.0.0.1]/x", True),
    ("http://93.184.216.34/x", False),
    ("http://example.com/x", False),
    ("http://abc.de/x", False),
]


@pytest.mark.parametrize(("url", "is_inside"), LITERALS)
def test_an_inner_address_in_digits_is_refused_without_a_look_at_names(
    url: str, is_inside: bool
) -> None:
    book = Book()
    guard = EgressGuard(book)
    if is_inside:
        with pytest.raises(Blocked, match="not a public address"):
            guard.require_possible(url)
    else:
        guard.require_possible(url)
    assert book.asked == []


def test_an_allowed_inner_address_in_digits_is_possible() -> None:
    guard = EgressGuard(Book(), ["10.0.0.0/8", "localhost"])
    guard.require_possible("http://10.1.2.3/x")
    guard.require_possible("http://localhost/x")
    with pytest.raises(Blocked):
        guard.require_possible("http://127.0.0.1/x")


METADATA = [
    "169.254.169.254",
    "169.254.1.1",
    "fe80::1",
    "fd00:ec2::254",
    "168.63.129.16",
    "100.100.100.200",
    "::ffff:169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "2002:a9fe:a9fe::",
]


def runner_addresses(guard: RunnerGuard, host: str) -> Sequence[str]:
    return asyncio.run(guard.addresses(host, 80))


@pytest.mark.parametrize("allowed", [None, ["0.0.0.0/0", "::/0"]])
@pytest.mark.parametrize("address", METADATA)
def test_runners_are_never_posted_to_at_metadata_addresses(
    address: str, allowed: list[str] | None
) -> None:
    guard = RunnerGuard(Book(runner_com=["10.0.0.1", address]), allowed)
    with pytest.raises(Blocked, match="link-local or metadata"):
        runner_addresses(guard, "runner.com")
    with pytest.raises(Blocked, match="link-local or metadata"):
        guard.require_possible(f"http://{f'[{address}]' if ':' in address else address}/invoke")


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "224.0.0.1", "ff02::1", "rubbish"])
def test_runners_are_never_posted_to_where_no_single_host_is(address: str) -> None:
    with pytest.raises(Blocked):
        runner_addresses(RunnerGuard(Book(runner_com=[address])), "runner.com")


def test_runners_live_anywhere_else_without_a_list() -> None:
    guard = RunnerGuard(Book(runner_com=["10.0.0.1", "10.0.0.1", "::1"]))
    assert not guard.is_restricted
    assert runner_addresses(guard, "runner.com") == ("10.0.0.1", "::1")
    guard.require_possible("http://127.0.0.1:9000/invoke")


def test_a_list_of_the_operator_says_where_runners_live() -> None:
    book = Book(runner_com=["10.0.0.1"], other_com=["10.0.0.1", "192.168.0.1"], named=["8.8.8.8"])
    guard = RunnerGuard(book, ["10.0.0.0/8", "named"])
    assert guard.is_restricted
    assert runner_addresses(guard, "runner.com") == ("10.0.0.1",)
    assert runner_addresses(guard, "named") == ("8.8.8.8",)
    with pytest.raises(Blocked, match=r"192\.168\.0\.1, which is not in PERDURE_RUNNER_ALLOW"):
        runner_addresses(guard, "other.com")
    with pytest.raises(Blocked, match="PERDURE_RUNNER_ALLOW"):
        guard.require_possible("http://0x7f.1/invoke")
    with pytest.raises(OSError, match="no such name"):
        runner_addresses(guard, "nowhere")
