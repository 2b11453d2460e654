"""Cross-origin requests (CORS): the web pages that may read and write, and the headers that tell browsers so.

A browser sends the header ``Origin`` with every request that a page makes to another origin, and with every POST and
DELETE. It lets a page read a response only if that carries ``Access-Control-Allow-Origin``. It asks for permission
first (a preflight: OPTIONS), but not before a simple POST. So the server itself refuses writes of pages that may not
write.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from tricklecast.trickle import wire

ANY: Final = "*"
"""Stands for all origins in a list of origins."""

_READ_METHODS: Final = frozenset({b"GET", b"HEAD"})
_PREFLIGHT: Final = (
    ("access-control-allow-headers", ", ".join(wire.ALLOWED_REQUEST_HEADERS)),
    ("access-control-max-age", "86400"),
)


class Decision(NamedTuple):
    """The decision about a request.

    Attributes:
        allowed: if not, the server answers 403 and changes nothing.
        headers: name and value pairs for the response.
    """

    allowed: bool
    headers: tuple[tuple[str, str], ...] = ()


ALLOWED: Final = Decision(True)
"""For a request that no page of another origin has made, and for a read whose page cannot see the response."""

REFUSED: Final = Decision(False)


class Cors:
    """Decides about requests by their ``Origin``.

    Args:
        read: origins whose pages may read (GET, HEAD), as ``https://example.org``; :data:`ANY` for all.
        write: origins whose pages may use all other methods.
    """

    def __init__(self, read: Iterable[str], write: Iterable[str]) -> None:
        self._read = {origin.encode(): _decisions(origin, "GET, HEAD") for origin in read}
        self._write = {origin.encode(): _decisions(origin, "POST, DELETE") for origin in write}

    def decide(self, method: bytes, headers: Mapping[bytes, bytes], scheme: str) -> Decision:
        """Decide about one request.

        Args:
            method: its method. An OPTIONS is decided like the method for which it asks.
            headers: its header fields by lower-case name.
            scheme: ``http`` or ``https``, as the server speaks it on this connection.
        """
        origin = headers.get(b"origin")
        if origin is None or _is_same(origin.lower(), headers.get(b"host", b"").lower(), scheme.encode()):
            return ALLOWED
        is_preflight = method == b"OPTIONS"
        wanted = headers.get(b"access-control-request-method", b"GET") if is_preflight else method
        is_read = wanted in _READ_METHODS
        permitted = self._read if is_read else self._write
        decisions = permitted.get(origin.lower()) or permitted.get(b"*")
        if decisions is None:
            return ALLOWED if is_read else REFUSED
        return decisions[is_preflight]


def _is_same(origin: bytes, host: bytes, scheme: bytes) -> bool:
    """Whether a page is of the server's own origin. Behind a proxy that speaks TLS, https requests arrive as http."""
    return bool(host) and origin in (b"%b://%b" % (scheme, host), b"https://" + host)


def _decisions(origin: str, methods: str) -> tuple[Decision, Decision]:
    """The permission for pages of this origin: for the request itself, and for a preflight."""
    headers: tuple[tuple[str, str], ...] = (("access-control-allow-origin", origin),)
    if origin != ANY:
        headers += (("vary", "origin"),)
    answer = (*headers, ("access-control-expose-headers", ", ".join(wire.EXPOSED_HEADERS)))
    preflight = (*headers, ("access-control-allow-methods", methods), *_PREFLIGHT)
    return Decision(True, answer), Decision(True, preflight)
