"""By which names the server answers: a defence of servers on somebody's own machine against DNS rebinding.

A page of ``evil.example`` can let its name point to 127.0.0.1 a minute after it was loaded. To the browser the server
on the user's machine then is of the page's own origin, so that CORS does not stop the page from reading and writing.
But the browser still sends the name, in ``Host``. A server that only this machine reaches has no such name: it answers
to addresses (a browser that calls an address has resolved no name), to ``localhost``, to the name that it was told to
listen on, and to names without a dot, which nobody can own on the internet: they are this machine's or its network's
(``/etc/hosts``, containers). A server that other machines reach cannot know their names for it: there every name
counts, unless the operator lists them. The same holds behind a proxy, which passes on the name that its clients use.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tricklecast.app.data_plane.cors import ANY

MAX_KNOWN: Final = 256
"""Number of values of ``Host`` that were found right and are not looked at again."""

MAX_KNOWN_BYTES: Final = 255
"""The longest of these values; a longer one is looked at each time. No name of a host is longer."""


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
        self._dotless = not names  # names without a dot are right
        self._any = ANY.encode() in names or not (names or is_local)  # every name is right
        self._names = {b"localhost", *(name.lower().encode() for name in own)}
        self._names |= {name for name in names if not name.startswith(b"*.")}
        # Ends of right names.
        self._ends = (b".localhost", *(name[1:] for name in names if name.startswith(b"*.")))
        self._known: set[bytes] = set()  # values of the header that were found right

    def allow(self, host: bytes | None) -> bool:
        """Whether a request with this header is for this server; without one no browser has sent it."""
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
