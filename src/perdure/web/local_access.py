"""Which hosts and origins a server without credentials answers.

Without credentials, whatever can reach the server controls it, and any web page that a developer
visits can make the browser reach it. A page of another site is recognised by the `Origin` of its
writes and WebSockets; one that has its own name resolve to this machine (DNS rebinding) by the
`Host`, which is that name.
"""

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import ip_address

from perdure.web.message import HttpError, Request

_READS = frozenset({"GET", "HEAD", "OPTIONS"})


class LocalAccess:
    """Admits loopback names, the address that a client connected to, and names of the operator."""

    def __init__(self, allowed_hosts: Iterable[str] = ()) -> None:
        self._allowed = frozenset(host.lower().strip("[]") for host in allowed_hosts)
        # Reading an address costs more than all other checks of a request, and clients send the
        # same few. Nothing but its arguments tells the result.
        self._is_own = lru_cache(maxsize=64)(self._find_own)

    def check(self, request: Request) -> None:
        """Raise for a foreign host, and for a write or a WebSocket of a foreign origin."""
        authority = request.headers.get(b"host")
        if authority is None:
            # HTTP/1.0, which no browser speaks.
            return
        if not self._is_own(authority, request.server_address):
            raise HttpError(
                403,
                "host_not_allowed",
                "a server without credentials answers only to loopback names and its own address; "
                "set credentials, or name this host in PERDURE_ALLOWED_HOSTS",
            )
        origin = request.headers.get(b"origin")
        if origin is None or (request.method in _READS and not request.is_upgrade):
            return
        _, _, site = _folded(origin).partition("://")
        if site != _folded(authority):
            raise HttpError(
                403,
                "origin_not_allowed",
                "a server without credentials takes no writes and no WebSockets from pages of "
                "other origins",
            )

    def _find_own(self, authority: bytes, server_address: str) -> bool:
        host = _without_port(_folded(authority))
        if host == "localhost" or host.endswith(".localhost") or host in self._allowed:
            return True
        try:
            address = ip_address(host)
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None)
        if address.is_loopback or (mapped is not None and mapped.is_loopback):
            return True
        return bool(server_address) and address == ip_address(server_address.partition("%")[0])


def _folded(value: bytes) -> str:
    return value.decode("latin-1").strip().lower()


def _without_port(authority: str) -> str:
    """The host of an authority: a name, an IPv4 address, or an IPv6 address without brackets."""
    if authority.startswith("["):
        return authority[1:].partition("]")[0]
    return authority.partition(":")[0].rstrip(".")
