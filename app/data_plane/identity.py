"""Who a client is, as far as the access log can tell."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from tricklecast.app.data_plane.client_address import TrustedProxies, plain
from tricklecast.trickle import wire
from tricklecast.trickle.records import Op

FORWARDED_FOR: Final = b"x-forwarded-for"

MAX_TEXT: Final = 256
"""Characters kept of a client's free text (user agent, path, key): a log line must not be as long as a client likes."""

CLIENT: Final = wire.CLIENT.lower().encode()


def forwarded_for(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """All that proxies say about where a request comes from: several lines count as one (RFC 9110, section 5.3)."""
    return b",".join([value for name, value in headers if name == FORWARDED_FOR])


def origin(proxies: TrustedProxies, peer: str, headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The address of the client: the peer's, or what a trusted proxy says."""
    peer = plain(peer)
    return proxies.client(peer, forwarded_for(headers).decode("latin-1")) if peer in proxies else peer


def user_agent(value: bytes) -> tuple[str | None, str | None]:
    """A user agent as text, cut, and its first ``product/version``."""
    # Cut before it becomes a key of the cache: a header may be 64 KiB long.
    return _split_user_agent(value[:MAX_TEXT])


@lru_cache(maxsize=4096)
def _split_user_agent(value: bytes) -> tuple[str | None, str | None]:
    text = value.decode("latin-1")
    return text or None, text.split(" ", 1)[0][:64] or None


@lru_cache(maxsize=8192)
def client_key(ip: str, ua: str | None) -> str:
    """A stable key for a client that gave none: not secret, only short and the same each time."""
    return blake2b(f"{ip}\0{ua}".encode(), digest_size=8).hexdigest()


def guarded_client(op: Op | None, headers: dict[bytes, bytes], ip: str | None) -> int:
    """Who a client is for the storm guard: its address, and its own name or else its user agent.

    A number, so that remembering it costs the same however long a name a client makes up. What is asked for counts for
    itself, or a publisher that gets on would be taken for a reader behind the same address that does.
    """
    name = headers.get(CLIENT) or headers.get(b"user-agent", b"")
    return hash((ip, op, name[:MAX_TEXT]))


def has_name(headers: dict[bytes, bytes]) -> bool:
    """Whether a client says which one it is: without, all behind its address may be one for the storm guard."""
    return bool(headers.get(CLIENT))
