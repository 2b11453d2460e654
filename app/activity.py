"""The lines of `tricklecast serve` on its terminal: one for each publisher and reader that comes or leaves.

A client makes a request for each segment, so a line for each request would hide which clients are there. Once a second
:meth:`Activity.look` walks through the open connections. Their clients are there, and so are the clients of requests
that have ended since. A client has left when it has made no request for :data:`GONE_S`. Refused requests do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from tricklecast.app.core.facts import ChannelEnded, Fact
from tricklecast.app.data_plane.client_address import client_key
from tricklecast.app.data_plane.reader import Reader
from tricklecast.app.data_plane.upload import Upload
from tricklecast.trickle.amounts import size
from tricklecast.trickle.paths import is_reserved
from tricklecast.trickle.records import AccessRecord, Op
from tricklecast.trickle.wire import Status, printable

SHOW_S: Final = 1.0
"""How often the lines are shown."""

GONE_S: Final = 5.0
"""A client has left after this time without a request: one without preconnects may pause between two of them."""

MAX_LINES: Final = 10
"""Lines of one look; one more line says how many were left out."""

MAX_CONNECTIONS: Final = 2000
"""With more connections, or more clients, the walk would take more than a millisecond: then only channels are shown."""

_ROLES: Final[dict[str | None, str]] = {
    Op.READ: "reader",
    Op.STREAM: "reader",
    Op.PLAYLIST: "reader",
    Op.HLS: "reader",
    Op.CLIP: "reader",
    Op.FEED: "reader",
    Op.PUBLISH: "publisher",
}


class Visitor(NamedTuple):
    """A client in one role on one channel."""

    channel: str
    role: str
    name: str


class Visit:
    """The stay of a visitor: when it was first and last seen, in seconds, and the bytes of its ended requests."""

    __slots__ = ("bytes", "first", "last")

    def __init__(self, now: float) -> None:
        self.first = self.last = now
        self.bytes = 0


class Activity:
    """The clients that are there, and the lines about those that come and leave.

    Args:
        clock: the time in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._visits: dict[Visitor, Visit] = {}  # of those that are there
        self._lines: list[str] = []  # for the next look, MAX_LINES at most
        self._left_out = 0  # lines beyond these
        self._is_crowded = False  # there are too many connections to walk through

    def note_fact(self, fact: Fact) -> None:
        """A channel was created or has ended."""
        if not is_reserved(fact.channel):
            what = f"ended ({fact.reason})" if isinstance(fact, ChannelEnded) else "created"
            self._add_line(f"{printable(fact.channel)}: {what}")

    def note_exchange(self, record: AccessRecord) -> None:
        """A request has ended."""
        if record.status in (Status.OK, None) and (visit := self._see(record)) is not None:
            visit.bytes += (record.bytes_in if record.op == Op.PUBLISH else record.bytes_out) or 0

    def look(self, connections: Collection[object]) -> list[str]:
        """Find out who has come and who has left.

        Args:
            connections: all open connections of the data plane.

        Returns:
            The lines to show now.
        """
        crowded = max(len(connections), len(self._visits)) >= (MAX_CONNECTIONS // (2 if self._is_crowded else 1))
        if crowded and not self._is_crowded:
            self._add_line(f"{MAX_CONNECTIONS} connections or more: publishers and readers are no longer shown")
            self._visits.clear()
        self._is_crowded = crowded
        if not crowded:
            for connection in connections:
                exchange = getattr(connection, "exchange", None)
                if isinstance(exchange, Reader | Upload) and isinstance(exchange.record, AccessRecord):
                    self._see(exchange.record)
            self._forget_gone()
        lines, self._lines = self._lines, []
        if self._left_out:
            lines.append(f"and {self._left_out} more lines")
            self._left_out = 0
        return lines

    def _see(self, record: AccessRecord) -> Visit | None:
        """The visit of a request's client, which may begin with it; ``None`` if it is not shown."""
        role = _ROLES.get(record.op)
        if role is None or record.channel is None or is_reserved(record.channel) or record.method == "HEAD":
            return None
        visitor = Visitor(printable(record.channel), role, _name(record))
        visit = self._visits.get(visitor)
        if visit is not None:
            visit.last = self._clock()
        elif not self._is_crowded and len(self._visits) < MAX_CONNECTIONS:
            visit = self._visits[visitor] = Visit(self._clock())
            self._add_line(f"{visitor.channel}: {role} {visitor.name}")
        return visit

    def _forget_gone(self) -> None:
        since = self._clock() - GONE_S
        for visitor, visit in [(visitor, visit) for visitor, visit in self._visits.items() if visit.last < since]:
            del self._visits[visitor]
            stay = f"{visit.last - visit.first:.0f} s, {size(visit.bytes)}"
            self._add_line(f"{visitor.channel}: {visitor.role} {visitor.name} left after {stay}")

    def _add_line(self, line: str) -> None:
        if len(self._lines) < MAX_LINES:
            self._lines.append(line)
        else:
            self._left_out += 1


def _name(record: AccessRecord) -> str:
    """A client's own name and its address; the program that it runs, if it has no name."""
    ip = record.ip or ""
    name = record.release if record.client == client_key(ip, record.ua) else record.client
    return printable(f"{name} ({ip})" if name else ip)
