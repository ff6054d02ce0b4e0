"""Where the server may send what others tell it to send: nowhere inside.

An address is vetted by what its name resolves to, all of it, and the connection then goes to an
address that was vetted; nothing is looked up twice. Loopback, private, link-local and all other
addresses that are not of the public internet are refused, also in the clothes of IPv6, unless they
or the name are on the list of the operator.
"""

import asyncio
import re
import socket
from collections.abc import Iterable, Sequence
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import NamedTuple, Protocol
from urllib.parse import quote, urldefrag, urljoin, urlsplit

from perdure.core import limits

_PORTS = {"http": 80, "https": 443}
_NAT64 = ip_network("64:ff9b::/96")
_REFUSED = tuple(
    ip_network(text)
    for text in (
        *("64:ff9b:1::/48", "fec0::/10", "::/96", "100::/64", "2001::/23", "3fff::/20"),
        *("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32"),
    )
)
"""What is not of the public internet, although `ipaddress` may take it for global."""
_METADATA = tuple(
    ip_network(text)
    for text in (
        *("169.254.0.0/16", "fe80::/10", "fd00:ec2::/32", "fd20:ce::254/128"),
        *("168.63.129.16/32", "100.100.100.200/32", "192.0.0.192/32"),
    )
)
"""Link-local networks, and the addresses at which clouds describe a machine and its credentials."""
_NUMERIC = re.compile(r"[0-9a-fx]+(\.[0-9a-fx]+){0,3}")
_IN_URLS = "%/:=&?~+!$,;'@()*[]"

Address = IPv4Address | IPv6Address


class Blocked(Exception):
    """A target that the server does not send to, and why."""


class Unresolved(Exception):
    """The name leads nowhere just now."""


class Target(NamedTuple):
    """A URL, taken apart."""

    scheme: str
    host: str
    """As it goes into names and certificates: ASCII, lower case, without brackets."""
    port: int
    path: str
    """Including the query."""

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


class Vetted(NamedTuple):
    """A target and the addresses that it may be reached at."""

    target: Target
    addresses: tuple[str, ...]


class Resolver(Protocol):
    """Whoever knows the addresses of a name."""

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        """All addresses. Raises OSError."""
        ...


class SystemResolver:
    """The resolver of the machine."""

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return [str(entry[4][0]) for entry in found]


class AllowList:
    """Hosts and networks that an operator allows. Raises Blocked for an entry that is neither."""

    def __init__(self, entries: Iterable[str]) -> None:
        self._hosts: set[str] = set()
        self._networks: list[IPv4Network | IPv6Network] = []
        for entry in entries:
            try:
                self._networks.append(ip_network(entry))
            except ValueError:
                self._hosts.add(_ascii_host(entry))

    def has_host(self, host: str) -> bool:
        return host in self._hosts

    def has_address(self, address: Address) -> bool:
        return any(
            one in network for one in (address, _unwrapped(address)) for network in self._networks
        )


class EgressGuard:
    """Vets targets. `allowed` names hosts and networks that are fine although they are inside."""

    def __init__(self, resolver: Resolver, allowed: Iterable[str] = ()) -> None:
        self._resolver = resolver
        self._allowed = AllowList(allowed)

    def require_possible(self, url: str) -> None:
        """Refuse a URL that can never be sent to: a malformed one, or an inner address in digits.

        Names are resolved when something is sent. Raises Blocked.
        """
        host = read_target(url).host
        address = literal_address(host)
        if address is not None and not self._is_fine(host, str(address)):
            raise Blocked(f"{host} is not a public address")

    async def vet(self, url: str) -> Vetted:
        """Where to connect for a URL. Raises Blocked or Unresolved."""
        target = read_target(url)
        try:
            found = await self._resolver.resolve(target.host, target.port)
        except OSError as error:
            raise Unresolved(f"{target.host} cannot be resolved: {error}") from None
        if not found:
            raise Unresolved(f"{target.host} has no address")
        for text in found:
            if not self._is_fine(target.host, text):
                raise Blocked(f"{target.host} is at {text}, which is not a public address")
        return Vetted(target, tuple(dict.fromkeys(found)))

    def _is_fine(self, host: str, text: str) -> bool:
        if self._allowed.has_host(host):
            return True
        try:
            address = ip_address(text)
        except ValueError:
            return False
        return is_public(_unwrapped(address)) or self._allowed.has_address(address)


class RunnerGuard:
    """Says at which addresses runners may be posted to.

    Link-local and metadata addresses never are. With a list only its hosts and networks are;
    without one all others are, because runners usually live inside.
    """

    def __init__(self, resolver: Resolver, allowed: Iterable[str] | None = None) -> None:
        self._resolver = resolver
        self._allowed = None if allowed is None else AllowList(allowed)

    @property
    def is_restricted(self) -> bool:
        """Whether there is a list."""
        return self._allowed is not None

    def require_possible(self, url: str) -> None:
        """Refuse a URL that can never be posted to. Names are resolved when they are connected to.

        Raises Blocked.
        """
        host = read_target(url).host
        address = literal_address(host)
        if address is not None:
            self._require(host, address)

    async def addresses(self, host: str, port: int) -> Sequence[str]:
        """Where to connect for a host. Raises Blocked, or OSError when it cannot be resolved."""
        found = await self._resolver.resolve(host, port)
        if not found:
            raise OSError(f"{host} has no address")
        for text in found:
            address = literal_address(text)
            if address is None:
                raise Blocked(f"{host} resolved to {text}, which is not an address")
            self._require(host, address)
        return tuple(dict.fromkeys(found))

    def _require(self, host: str, address: Address) -> None:
        plain = _unwrapped(address)
        shown = host if host == str(address) else f"{host} is at {address}, which"
        if _is_metadata(address) or _is_metadata(plain):
            raise Blocked(f"{shown} is a link-local or metadata address")
        if plain.is_multicast or plain.is_unspecified:
            raise Blocked(f"{shown} is not an address of one host")
        allowed = self._allowed
        if allowed is not None and not allowed.has_host(host) and not allowed.has_address(address):
            raise Blocked(f"{shown} is not in PERDURE_RUNNER_ALLOW")


def read_target(url: str) -> Target:
    """A URL that could be sent to, taken apart. Raises Blocked for one that never can."""
    if len(url) > limits.URL_LENGTH_MAX:
        raise Blocked(f"the URL has more than {limits.URL_LENGTH_MAX} characters")
    if any(character <= " " or character in "\\\x7f" for character in url):
        raise Blocked("the URL has blanks, control characters or backslashes")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise Blocked("the URL cannot be parsed") from None
    scheme = parts.scheme.lower()
    if scheme not in _PORTS:
        raise Blocked("only http and https are sent to")
    if parts.username is not None or parts.password is not None:
        raise Blocked("the URL has credentials in it")
    if not parts.hostname or port == 0:
        raise Blocked("the URL has no host to connect to")
    path = quote(parts.path or "/", safe=_IN_URLS)
    query = f"?{quote(parts.query, safe=_IN_URLS)}" if parts.query else ""
    return Target(scheme, _ascii_host(parts.hostname), port or _PORTS[scheme], path + query)


def next_hop(url: str, location: str) -> str:
    """Where an answer sends us on to. Raises Blocked for what would be told less safely there."""
    try:
        hop, _ = urldefrag(urljoin(url, location))
    except ValueError:
        raise Blocked("it was redirected to a URL that cannot be parsed") from None
    if urlsplit(url).scheme.lower() == "https" and read_target(hop).scheme != "https":
        raise Blocked("it was redirected from https to http")
    return hop


def literal_address(host: str) -> Address | None:
    """The address that a host is in digits, also in the old short and hexadecimal spellings."""
    try:
        return ip_address(host)
    except ValueError:
        pass
    if not _NUMERIC.fullmatch(host):
        return None
    try:
        return IPv4Address(socket.inet_aton(host))
    except OSError:
        return None


def _is_metadata(address: Address) -> bool:
    return any(address in network for network in _METADATA if network.version == address.version)


def is_public(address: Address) -> bool:
    """Whether an address is of the public internet."""
    return (
        address.is_global
        and not address.is_multicast
        and not address.is_reserved
        and not any(
            address in network for network in _REFUSED if network.version == address.version
        )
    )


def _unwrapped(address: Address) -> Address:
    """The IPv4 address in an IPv6 one that only carries it."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address.sixtofour is not None:
            return address.sixtofour
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address


def _ascii_host(host: str) -> str:
    host = host.rstrip(".").lower()
    if "%" in host:
        raise Blocked("the URL names a zone of this machine")
    if host.isascii():
        return host
    try:
        return host.encode("idna").decode()
    except UnicodeError:
        raise Blocked("the URL has a host that no name can have") from None
