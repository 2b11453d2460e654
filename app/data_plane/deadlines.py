"""Deadlines: the states of a connection that end with time, and the peers that do not take what they are sent.

The sweeper looks a few times a second; no connection has a timer. All stays in one state last equally long, so a dict
in the order of arrival is in the order of deadlines, too, and a look costs only those that are due.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Iterable
from itertools import takewhile
from typing import Any, Final, TypeVar

from tricklecast.app.core.slow_readers import Cut, Stall, Timelines
from tricklecast.app.data_plane.scheduling import Peer, SlowReader

HALF_CLOSED_S: Final = 10.0
"""A peer that has closed its half may wait this long for the first byte of its response. A client that is gone looks
the same until the server sends to it."""

MAX_HALF_CLOSED: Final = 1024
"""Half-closed connections whose peer waits; one more, and the one that has waited longest is answered 503."""

HALF_CLOSED: Final = getattr(select, "POLLRDHUP", 0)
"""The event of a half-closed connection. Only Linux has it. Elsewhere poll still reports a reset."""

PeerT = TypeVar("PeerT", bound=Peer)


class Timeouts:
    """Connections by states that end after a time.

    Args:
        rest_s: the time for which a connection may be idle between requests.
        owed_s: the time that the rest of a request may take while no exchange runs on its connection.
        half_closed_s: the time for which a peer that has closed its half may wait for the first byte of its response.
    """

    def __init__(self, *, rest_s: float, owed_s: float, half_closed_s: float = HALF_CLOSED_S) -> None:
        self.rest_s, self.owed_s, self.half_closed_s = rest_s, owed_s, half_closed_s
        self.resting: dict[Peer, float] = {}  # idle between requests; the deadline of each
        self.owing: dict[Peer, float] = {}  # in the middle of a request
        self.half_closed: dict[Peer, float] = {}  # closed by their peer in one direction

    def expire(self, now: float) -> None:
        """End the states whose time is over."""
        for peer in due(self.half_closed, now):
            self.let_go(peer, now)
        for peer in due(self.resting, now):
            del self.resting[peer]
            peer.close()
        for peer in due(self.owing, now):
            del self.owing[peer]
            peer.too_slow()

    def closed_half(self, peer: Peer, now: float) -> None:
        """Note that a peer has closed its half of its connection, and is owed a response."""
        self.half_closed.setdefault(peer, now + self.half_closed_s)
        if len(self.half_closed) > MAX_HALF_CLOSED:
            self.let_go(next(iter(self.half_closed)), now)

    def let_go(self, peer: Peer, now: float) -> None:
        """End the exchange of a half-closed connection if no byte was sent yet; else look again later."""
        del self.half_closed[peer]
        self.half_closed[peer] = now + self.half_closed_s
        peer.let_go()

    def forget(self, peer: Peer) -> None:
        """Remove a connection that is gone."""
        self.resting.pop(peer, None)
        self.owing.pop(peer, None)
        self.half_closed.pop(peer, None)


class SlowPeers:
    """Connections whose transport holds bytes that the peer does not take. The sweeper cuts off those beyond a limit.

    Args:
        clock: seconds.
        lag_bytes, lag_s: the limits of a reader's lag; a peer may also take nothing for ``lag_s``.
    """

    def __init__(self, clock: Callable[[], float], *, lag_bytes: int, lag_s: float) -> None:
        self._clock = clock
        self._lag_bytes, self._lag_s = lag_bytes, lag_s
        self.stalled: dict[Peer, Stall] = {}  # the connections with unsent bytes
        self.timelines = Timelines(lag_s)  # the times at which the bytes were published that readers lack
        self.cut_offs = dict.fromkeys(Cut, 0)  # connections that were cut off, by reason

    def stall(self, peer: Peer) -> None:
        """Add a connection whose transport begins to hold bytes."""
        self.stalled[peer] = Stall(self._clock(), peer.unsent())

    def flowing(self, peer: Peer) -> None:
        """Remove a connection whose transport is empty again, or that is gone."""
        self.stalled.pop(peer, None)

    def expire(self, now: float, queued: Iterable[SlowReader]) -> None:
        """Cut off peers that stand still, or are too far behind in bytes or seconds.

        Args:
            queued: readers that are behind though their socket takes data.
        """
        segments = {reader.segment: None for reader in queued}
        segments.update({reader.segment: None for peer in self.stalled if (reader := peer.reader()) is not None})
        self.timelines.look(segments, now)
        for peer, stall in list(self.stalled.items()):
            if (why := self._verdict(peer, stall, now)) is not None:
                self.cut_offs[why] += 1
                peer.cut_off(why)

    def lag_s(self, reader: SlowReader) -> float:
        """The age of the oldest byte that a reader lacks and that was published while it was there, seconds."""
        return self.timelines.age_s(reader.segment, reader.has(), self._clock())

    def _verdict(self, peer: Peer, stall: Stall, now: float) -> Cut | None:
        if stall.stands_still(peer.unsent(), now, self._lag_s):
            return Cut.STILL
        reader = peer.reader()
        if reader is None:
            return None
        if reader.lag() > self._lag_bytes:
            return Cut.BYTES
        return Cut.AGE if reader.has() < self.timelines.overdue(reader.segment, now) else None


def gone(peers: Iterable[PeerT], events: int = 0) -> list[PeerT]:
    """The connections that are broken or have one of these events. Only this shows it while they are not read from."""
    poll = select.poll()
    by_fd: dict[int, PeerT] = {}
    for peer in peers:
        if (fd := peer.fileno()) >= 0:
            by_fd[fd] = peer
            poll.register(fd, events)
    return [by_fd[fd] for fd, _ in poll.poll(0)] if by_fd else []


def due(times: dict[Any, float], now: float) -> list[Any]:
    """The keys whose deadline is over, from a dict in the order of deadlines."""
    return list(takewhile(lambda key: times[key] <= now, times))
