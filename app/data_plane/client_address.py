"""The client of a request: its address behind trusted proxies, and the keys under which it is counted.

A request's address is the peer of its connection. If that peer is a trusted proxy, the address is the last one in
``X-Forwarded-For`` that is not a trusted proxy's: each proxy appends the address that it was asked from, so an entry
that the client wrote itself stands to the left of its real one and is never reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from hashlib import blake2b
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any, Final

from tricklecast.app.core.publishers import Identity
from tricklecast.trickle import wire
from tricklecast.trickle.records import Op

Network = IPv4Network | IPv6Network

FORWARDED_FOR: Final = b"x-forwarded-for"
CLIENT: Final = wire.CLIENT.lower().encode()
USER_AGENT: Final = b"user-agent"

MAX_TEXT: Final = 256
"""Characters kept of a client's free text (user agent, path, key), so that no client makes log lines long."""

MAX_ADDRESS_TEXT: Final = 64
"""Longest text that is parsed as an address; the longest real one, with a scope, is shorter."""

MAX_HOPS: Final = 16
"""Proxies that a request is followed back through. Real chains have two or three; a header may hold thousands of
addresses, and parsing one costs a microsecond."""


LOCAL: Final = "unix"
"""The address of a peer on a Unix socket: a program on this machine that may open the socket, mostly a proxy. It is
trusted, since otherwise all its clients would count as one."""


def peer_of(address: object) -> str | None:
    """The address of a connection's peer, as a socket gives it."""
    if isinstance(address, tuple):
        return str(address[0])
    return None if address is None else LOCAL


class TrustedProxies:
    """The proxies whose ``X-Forwarded-For`` is believed.

    Args:
        networks: the addresses of these proxies.
    """

    def __init__(self, networks: Iterable[Network]) -> None:
        self._networks = tuple(networks)

    def __contains__(self, ip: str) -> bool:
        return ip == LOCAL or (bool(self._networks) and (address := _parsed(ip)) is not None and self._trusts(address))

    def client(self, peer: str, forwarded: str) -> str:
        """The address of the client of a request that a trusted proxy sent.

        It is the proxy's own address if the header is empty, has a text that is no address to the right of the
        client's, or has too many addresses. If all addresses are proxies, the first one is the client.

        Args:
            peer: the proxy's own address.
            forwarded: ``X-Forwarded-For``, all its lines joined by commas.
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

    def origin(self, peer: str, headers: Iterable[tuple[bytes, bytes]]) -> str:
        """The client of any request: the peer, or the address that the peer names if it is a trusted proxy."""
        peer = plain(peer)
        return self.client(peer, forwarded_for(headers).decode("latin-1")) if peer in self else peer

    def _trusts(self, address: IPv4Address | IPv6Address) -> bool:
        return any(address in network for network in self._networks)


def forwarded_for(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """All lines of ``X-Forwarded-For`` as one (RFC 9110, section 5.3)."""
    return b",".join([value for name, value in headers if name == FORWARDED_FOR])


@lru_cache(maxsize=4096)
def plain(ip: str) -> str:
    """An address in its usual form: ``::ffff:192.0.2.1`` of a dual-stack socket becomes ``192.0.2.1``."""
    address = _parsed(ip) if ip.startswith("::") else None
    return ip if address is None else str(address)


@lru_cache(maxsize=4096)
def client_of(ip: str) -> str:
    """The key under which limits count an address: the address itself, or an IPv6 address's /64.

    One customer has a whole /64, and can use another address of it for each connection.
    """
    address = _parsed(ip) if ":" in ip else None
    if not isinstance(address, IPv6Address):
        return ip if address is None else str(address)
    return f"{IPv6Address(int(address) >> 64 << 64)}/64"


def user_agent(value: bytes) -> tuple[str | None, str | None]:
    """A user agent as text, cut to :data:`MAX_TEXT`, and its first ``product/version``."""
    # Cut before it becomes a key of the cache: a header may be 64 KiB long.
    return _split_user_agent(value[:MAX_TEXT])


@lru_cache(maxsize=4096)
def _split_user_agent(value: bytes) -> tuple[str | None, str | None]:
    text = value.decode("latin-1")
    return text or None, text.split(" ", 1)[0][:64] or None


@lru_cache(maxsize=8192)
def client_key(ip: str, ua: str | None) -> str:
    """A stable key for a client that sent no name of its own: short and always the same, not secret."""
    return blake2b(f"{ip}\0{ua}".encode(), digest_size=8).hexdigest()


def identity(headers: dict[bytes, bytes], ip: str | None) -> Identity:
    """The identity of a publisher among those of its channel: its own name, or else its address and user agent."""
    # Cut before they become a key of the cache: a header may be 64 KiB long.
    return _identity(headers.get(CLIENT, b"")[:MAX_TEXT], ip, headers.get(USER_AGENT, b"")[:MAX_TEXT])


@lru_cache(maxsize=1024)
def _identity(name: bytes, ip: str | None, ua: bytes) -> Identity:
    return Identity(name.decode("latin-1")) if name else Identity(address=f"{ip} {ua.decode('latin-1')}")


def guarded_client(op: Op | None, headers: dict[bytes, bytes], ip: str | None) -> int:
    """The storm guard's key of a client: its address, its operation, and its own name or else its user agent.

    It is a number, so that a long name takes no more memory than a short one. The operation is part of it, so that a
    publisher's progress is not taken for that of a reader at the same address.
    """
    name = headers.get(CLIENT) or headers.get(USER_AGENT, b"")
    return hash((ip, op, name[:MAX_TEXT]))


def has_name(headers: dict[bytes, bytes]) -> bool:
    """Whether a client sent a name of its own. If not, many clients may share its address and user agent."""
    return bool(headers.get(CLIENT))


def _parsed(ip: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(ip[:MAX_ADDRESS_TEXT])
    except ValueError:
        return None
    return address.ipv4_mapped or address if isinstance(address, IPv6Address) else address


def _without_port(hop: str) -> str:
    """An address without its port: ``192.0.2.1:4711``, ``[2001:db8::1]:4711`` and ``[2001:db8::1]`` all occur."""
    if hop.startswith("["):
        address, closed, port = hop[1:].partition("]")
        return address if closed and (not port or port[1:].isdigit()) else hop
    address, _, port = hop.partition(":")
    return address if port.isdigit() else hop


def certified_name(certificate: Mapping[str, Any] | None) -> str | None:
    """The name in a client's certificate, as the ssl module describes it: its common name, or its first other name."""
    if not certificate:
        return None
    common = [value for fields in certificate.get("subject", ()) for key, value in fields if key == "commonName"]
    others = [value for _, value in certificate.get("subjectAltName", ())]
    names = [str(name) for name in common + others if name]
    return names[0][:MAX_TEXT] if names else None
