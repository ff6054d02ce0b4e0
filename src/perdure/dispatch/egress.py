"""Where the server may send what others tell it to send: nowhere inside.

An address is vetted by what its name resolves to, all of it, and the connection then goes to an
address that was vetted; nothing is looked up twice. Loopback, private, link-local and all other
addresses that are not of the public internet are refused, also in the clothes of IPv6, unless they
or the name are on the list of the operator.
"""

import asyncio
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
    for text in ("64:ff9b:1::/48", "fec0::/10", "::/96", "100::/64", "2001::/23", "192.88.99.0/24")
)
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


class EgressGuard:
    """Vets targets. `allowed` names hosts and networks that are fine although they are inside."""

    def __init__(self, resolver: Resolver, allowed: Iterable[str] = ()) -> None:
        self._resolver = resolver
        self._hosts: set[str] = set()
        self._networks: list[IPv4Network | IPv6Network] = []
        for entry in allowed:
            try:
                self._networks.append(ip_network(entry))
            except ValueError:
                self._hosts.add(_ascii_host(entry))

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
            if target.host not in self._hosts and not self._is_fine(text):
                raise Blocked(f"{target.host} is at {text}, which is not a public address")
        return Vetted(target, tuple(dict.fromkeys(found)))

    def _is_fine(self, text: str) -> bool:
        try:
            address = ip_address(text)
        except ValueError:
            return False
        plain = _unwrapped(address)
        return is_public(plain) or any(
            one in network for one in (address, plain) for network in self._networks
        )


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
        raise Blocked("the URL makes no sense") from None
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
        raise Blocked("it was sent on to a URL that makes no sense") from None
    if urlsplit(url).scheme.lower() == "https" and read_target(hop).scheme != "https":
        raise Blocked("it was sent on from https to http")
    return hop


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
