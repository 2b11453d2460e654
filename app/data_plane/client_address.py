"""Whose request it is: the client's address behind proxies that are believed, as it is counted."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

Network = IPv4Network | IPv6Network

MAX_TEXT: Final = 64
"""Characters of a text that may be an address: the longest, with a scope, is shorter."""

MAX_HOPS: Final = 16
"""Proxies that a request is followed back through. Real chains have two or three; a header may hold thousands of
addresses, each of which costs a microsecond to read."""


class TrustedProxies:
    """The proxies whose word about their clients is taken.

    Args:
        networks: where they are.
    """

    def __init__(self, networks: Iterable[Network]) -> None:
        self._networks = tuple(networks)

    def __contains__(self, ip: str) -> bool:
        return bool(self._networks) and (address := _parsed(ip)) is not None and self._trusts(address)

    def client(self, peer: str, forwarded: str) -> str:
        """The client of a request that a trusted proxy has sent: the last address that is not a trusted proxy's.

        Each proxy adds the address it was asked from at the right, so that what a client has written itself is left
        of its own address, and is not looked at.

        Args:
            peer: the proxy's own address.
            forwarded: ``X-Forwarded-For``, all lines of it joined by commas.

        Returns:
            The client's address; the peer's own where the header does not say it: it is empty, holds anything but
            addresses on the way to the client's, or too many. If all are proxies, the first of them is the client.
        """
        client = peer
        hops = forwarded.rsplit(",", MAX_HOPS)[-MAX_HOPS:]
        for hop in reversed(hops):
            address = None if "%" in hop else _parsed(_without_port(hop.strip()))
            if address is None:
                return peer
            client = str(address)
            if not self._trusts(address):
                return client
        return peer if len(hops) == MAX_HOPS else client

    def _trusts(self, address: IPv4Address | IPv6Address) -> bool:
        return any(address in network for network in self._networks)


@lru_cache(maxsize=4096)
def plain(ip: str) -> str:
    """An address as it is written: an IPv4 address that a socket for both kinds shows as an IPv6 one is itself."""
    address = _parsed(ip) if ip.startswith("::") else None
    return ip if address is None else str(address)


@lru_cache(maxsize=4096)
def client_of(ip: str) -> str:
    """The key under which an address is counted: itself, or of IPv6 its /64, which one customer has to himself."""
    address = _parsed(ip) if ":" in ip else None
    if not isinstance(address, IPv6Address):
        return ip if address is None else str(address)
    return f"{IPv6Address(int(address) >> 64 << 64)}/64"


def _parsed(ip: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(ip[:MAX_TEXT])
    except ValueError:
        return None
    return address.ipv4_mapped or address if isinstance(address, IPv6Address) else address


def _without_port(hop: str) -> str:
    """An address as some proxies write it: ``192.0.2.1:4711``, ``[2001:db8::1]:4711``, ``[2001:db8::1]``."""
    if hop.startswith("["):
        address, closed, port = hop[1:].partition("]")
        return address if closed and (not port or port[1:].isdigit()) else hop
    address, _, port = hop.partition(":")
    return address if port.isdigit() else hop
