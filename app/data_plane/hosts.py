"""The host names that the server accepts in ``Host``: a defence of local servers against DNS rebinding.

The attack: a page of ``evil.example`` lets its name point to 127.0.0.1 a minute after it was loaded. To the browser the
server on the user's machine is then of the page's own origin, so CORS does not stop the page from reading and writing.
But the browser still sends the page's name in ``Host``.

So a server that only this machine reaches accepts

- addresses, since a browser that calls an address has resolved no name;
- ``localhost``, and the name that it was told to listen on;
- names without a dot, which cannot be registered on the internet (``/etc/hosts``, containers).

A server that other machines reach cannot know the names by which they call it. It accepts every name, unless the
operator lists them. The same holds behind a proxy, which passes on the name that its clients use.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tricklecast.app.data_plane.cors import ANY

MAX_KNOWN: Final = 256
"""Right values of ``Host`` that are remembered."""

MAX_KNOWN_BYTES: Final = 255
"""The longest of these values. No host name is longer; a longer value is checked each time."""


class Hosts:
    """Decides about requests by their ``Host``.

    Args:
        allowed: names, in lower case; ``*.example.org`` stands for every name below that one, :data:`ANY` for every
            name at all. If there are none, ``is_local`` decides.
        own: names or addresses that the server was told to listen on.
        is_local: whether only programs on this machine reach the server.
    """

    def __init__(self, allowed: Iterable[str], own: Iterable[str], *, is_local: bool) -> None:
        names = {name.encode() for name in allowed}
        self._dotless = not names  # names without a dot are accepted
        self._any = ANY.encode() in names or not (names or is_local)  # every name is accepted
        self._names = {b"localhost", *(name.lower().encode() for name in own)}
        self._names |= {name for name in names if not name.startswith(b"*.")}
        # Ends of accepted names.
        self._ends = (b".localhost", *(name[1:] for name in names if name.startswith(b"*.")))
        self._known: set[bytes] = set()  # accepted values of the header

    def allow(self, host: bytes | None) -> bool:
        """Whether a request with this header is for this server. One without it was sent by no browser."""
        if self._any or not host or host in self._known:
            return True
        if not self._is_right(host):
            return False
        if len(self._known) < MAX_KNOWN and len(host) <= MAX_KNOWN_BYTES:
            self._known.add(host)
        return True

    def _is_right(self, host: bytes) -> bool:
        if host.startswith(b"["):  # an IPv6 address
            return True
        name = host.partition(b":")[0].rstrip(b".").lower()
        if self._dotless and b"." not in name:
            return True
        # A name that ends in a number is an IPv4 address (WHATWG URL, section 3.6).
        return name.rpartition(b".")[2].isdigit() or name in self._names or name.endswith(self._ends)
