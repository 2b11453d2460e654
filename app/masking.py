"""Masks the addresses of clients in the access log (``--log-ips``).

A log of addresses is personal data. ``prefix`` keeps the network (192.0.2.0, 2001:db8:1::), which shows where a storm
comes from. With ``hash`` a reader of the log sees only that two lines have the same address: the key is drawn when the
server starts and never written down, so an attacker cannot try all addresses later. Both also replace the key of a
client without a name (``client``), which is a hash of its address and user agent without a secret.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from enum import StrEnum
from functools import lru_cache
from hashlib import blake2b
from ipaddress import ip_address, ip_network
from typing import Any, Final

from tricklecast.app.data_plane.client_address import LOCAL
from tricklecast.trickle.records import Reason

PREFIX_BITS: Final = {4: 24, 6: 48}
"""Bits of an address of IPv4 and of IPv6 that ``prefix`` keeps: mostly the network of one company or area."""

MASK_BYTES: Final = 8
"""Length of a hash: two of a million clients share one with a probability of 3 in 100 million."""

_MADE_KEY: Final = re.compile(r"[0-9a-f]{16}")
"""The form of a key that the server makes for a client without a name."""

Mask = Callable[[dict[str, Any]], None]
"""Masks the addresses in the fields of one record."""


class LogIps(StrEnum):
    """The form of addresses in the access log."""

    FULL = "full"
    PREFIX = "prefix"
    HASH = "hash"


def mask_for(kind: LogIps, key: bytes | None = None) -> Mask | None:
    """The function that masks records; ``None`` if addresses are written as they are.

    Args:
        key: of the hashes; drawn at random if ``None``.
    """
    if kind is LogIps.FULL:
        return None
    key = key or secrets.token_bytes(32)

    @lru_cache(maxsize=8192)
    def hashed(text: str) -> str:
        return blake2b(text.encode(errors="surrogatepass"), digest_size=MASK_BYTES, key=key).hexdigest()

    masked = hashed if kind is LogIps.HASH else _prefix

    def mask(fields: dict[str, Any]) -> None:
        if (ip := fields.get("ip")) is not None and ip != LOCAL:
            fields["ip"] = masked(ip)
        if (client := fields.get("client")) is not None and _MADE_KEY.fullmatch(client):
            fields["client"] = hashed(client)
        if fields.get("reason") == Reason.OCCUPIED and (detail := fields.get("detail")):
            # The publisher that is there already: its name, or its address and user agent.
            first, space, rest = detail.partition(" ")
            if _is_address(first):
                fields["detail"] = masked(first) + space + rest

    return mask


@lru_cache(maxsize=8192)
def _prefix(ip: str) -> str:
    if not _is_address(ip):
        return ip
    address = ip_address(ip.partition("%")[0])
    return str(ip_network((address, PREFIX_BITS[address.version]), strict=False).network_address)


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
