"""Pacing: a publisher is read more slowly if nearly all readers of its channel are late and still reading.

The theory of :mod:`app.data_plane.scheduling` says when a publisher is held, and why turns alone do not do. Example:
500 readers share a core and take 1 MB/s each; a publisher that sends as fast as it can should be read at 1 MB/s.

The server notes how far each reader of a channel has come, and looks at them each time 64 KiB were published. A reader
is *late* if it lacks bytes that were published :data:`LATE_S` ago, or more than :data:`LATE_BYTES`. If, of the readers
that have moved in the last :data:`MOVED_S`, more than nine in ten are late and none keeps up, the channel's publishers
are not read until one in ten is in time, or until they have waited for ``wait_s``. Meanwhile the server looks when it
has sent something to one of the readers and has nothing else to do, so that it never sleeps while a publisher waits.

So none of these readers slows a publisher:

- a late one, while another one keeps up;
- one that stands still, or is far behind;
- one that came late, has paused, or went back, until it has caught up;
- one that replays from storage, a client of HLS, and a subscription in the process.

A look costs 1 µs per reader. Looks are rare enough to take at most a twentieth of the time (a fifth while publishers
wait). docs/adr/0013-publishers-are-read-at-the-pace-of-their-readers.md has what was measured and left out.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from itertools import islice
from time import perf_counter
from typing import Final, Protocol, cast

from tricklecast.app.core.state import Channel
from tricklecast.app.data_plane.scheduling import READERS, Hold, OnFault, Peer

LATE_S: Final = 0.25
LATE_BYTES: Final = 256 << 10
"""A reader is late if it lacks bytes that are older than this time, or more bytes than this."""

FAR_BYTES: Final = 4 << 20
"""A reader that is farther behind is not looked at: waiting for it would take too long."""

SEGMENT_BYTES: Final = 4 << 10
"""Each closed segment counts as this number of bytes more, since the request for it takes as long as to relay them. So
64 segments make a reader late, however small they are, long before the window (256) evicts the ones that it lacks."""

STEP_BYTES: Final = 64 << 10
"""The least number of published bytes between two looks at a channel's readers. A reader that lacks fewer is in time,
however old they are: a small segment, for example."""

COST_FACTOR: Final = 20
"""The least time between two looks, as a multiple of the time that a look takes (1 µs per reader), unless
:data:`LATE_BYTES` were published meanwhile."""

LOOK_S: Final = 0.005
HELD_COST_FACTOR: Final = 5
"""While publishers wait, the server looks at all of their channels after 5 ms at the latest, or after this multiple of
the time that these looks take, if longer."""

IDLE_TURN_S: Final = 0.00005
"""A turn of the event loop that is shorter has served nobody: to read or write a few chunks takes longer."""

LATE_FACTOR: Final = 9
"""Publishers wait if there are more than nine late readers for each one that is in time."""

MOVED_S: Final = 0.5
STILL_LOOKS: Final = 4
"""A reader counts as moving for half a second, or for four looks if these take longer: a busy server may not have come
to the reader's next request. After that it has paused."""

KEEPS_UP_S: Final = 0.5
MOST_CREDIT_S: Final = 1.0
LAPSE_FACTOR: Final = 10
"""A reader keeps up that has been in time for half a second, or since it came. While it is late it loses ten times as
much time, of one second at most. So one that was late for 20 ms, as all are when the server was busy for so long, keeps
up as soon as it is in time again."""

TRICKLE_BYTES: Final = 16 << 10
"""Bytes that are read from a publisher that has waited for ``wait_s``, before it waits again."""

IDLE_S: Final = 1.0
"""When nothing was published for this time, the server forgets how far the readers had come."""

TIDY_SHARE: Final = 8
"""The sweeper tidies one in eight channels at a time: each of them every two seconds."""

_UNSEEN: Final = (-1, 0, -math.inf, -STILL_LOOKS, KEEPS_UP_S)
"""The :data:`Moved` of a reader that was not there in the last look."""


class PacedReader(Protocol):
    """A reader that may slow publishers (:attr:`app.data_plane.reader.Reader.paces`)."""

    connection: Peer
    sent: int


Positions = dict[Peer, tuple[int, int, int]]
"""For each reader: the seq of its segment, the bytes of it that the reader was sent, and the further bytes of the
channel that it could be sent."""

Moved = tuple[int, int, float, int, float]
"""The state of a reader: its seq and its bytes in the last look, the time and the number of the look in which it was
last seen to move, and the seconds of being in time that it has to its credit."""


class Pace(Hold):
    """The positions of one channel's readers, and the publishers that wait for them."""

    __slots__ = ("_heads", "_late", "_looks", "_next_look", "_reached", "channel", "ended", "finished", "look_at")

    def __init__(self, channel: Channel) -> None:
        super().__init__(READERS)
        self.channel = channel
        self.ended = 0  # SEGMENT_BYTES for each segment that has ended
        self.look_at = channel.bytes_in + STEP_BYTES  # the next look is at this value of `published`
        # Connections that were served a whole segment, its seq and the time, until they request the next one.
        self.finished: dict[Peer, tuple[int, float]] = {}
        self._reached: dict[Peer, Moved] = {}  # the readers of the last look
        self._looks = 0
        self._heads: deque[tuple[float, int]] = deque()  # times of looks and `published` then, LATE_S back
        self._late = False  # the result of the last look
        self._next_look = 0.0  # not before this time

    @property
    def published(self) -> int:
        """The published bytes, with :data:`SEGMENT_BYTES` for each segment that has ended."""
        return self.channel.bytes_in + self.ended

    def is_late(self, now: float) -> bool:
        """Whether no reader keeps up, and more than nine in ten of those that have moved lately are late."""
        head = self.published
        if now < self._next_look and head < self._heads[-1][1] + LATE_BYTES:
            return self._late
        since_last_s = now - self._heads[-1][0] if self._heads else 0.0
        limit = max(head - LATE_BYTES, min(self._head_before(now, head), head - STEP_BYTES))
        attached, between = self._positions()
        self._looks += 1
        before, self._reached = self._reached, {}
        late, in_time, steady = self._count(attached, before, head - limit, now, since_last_s)
        # A client may wait for the next segment on a second connection, and leave the first one idle meanwhile.
        late_between, in_time_between, steady_between = self._count(between, before, head - limit, now, since_last_s)
        late += max(0, late_between - len(attached))
        self.tidy(now)
        self._late = late > LATE_FACTOR * (in_time + in_time_between) and not steady + steady_between
        self._next_look = now + (HELD_COST_FACTOR if self.held else COST_FACTOR) * (perf_counter() - now)
        return self._late

    def _count(
        self, readers: Positions, before: dict[Peer, Moved], limit: int, now: float, since_last_s: float
    ) -> tuple[int, int, int]:
        """Count those of the readers that have moved lately: late ones, ones in time, and ones that keep up."""
        late = in_time = steady = 0
        looks = self._looks
        for reader, (seq, sent, lacks) in readers.items():
            last_seq, last_sent, moved_at, moved_in, credit = before.get(reader, _UNSEEN)
            is_late = lacks > limit
            if is_late and (seq < last_seq or last_seq < 0 or moved_at < now - MOVED_S):
                continue  # it went back, has never been in time, or has paused: it catches up
            if (seq, sent) > (last_seq, last_sent) or not lacks:
                moved_at, moved_in = now, looks
            if is_late:
                credit = max(0.0, credit - LAPSE_FACTOR * max(since_last_s, LOOK_S))
            else:
                credit = min(MOST_CREDIT_S, credit + since_last_s)
            self._reached[reader] = seq, sent, moved_at, moved_in, credit
            if moved_at > now - MOVED_S or moved_in > looks - STILL_LOOKS:
                late += is_late
                in_time += not is_late
                steady += not is_late and credit >= KEEPS_UP_S
        return late, in_time, steady

    def tidy(self, now: float) -> None:
        """Forget readers that have made another request or are gone; and all of them if nothing is published."""
        if not self._heads or now - self._heads[-1][0] > IDLE_S:
            self.finished.clear()
            self._reached.clear()
        for reader, (_, at) in list(self.finished.items()):
            if reader.deaf or reader.exchange is not None or now - at > MOVED_S:
                del self.finished[reader]

    def _head_before(self, now: float, head: int) -> int:
        """The value of ``published`` :data:`LATE_S` ago."""
        heads = self._heads
        heads.append((now, head))
        while len(heads) > 1 and heads[1][0] <= now - LATE_S:
            heads.popleft()
        return heads[0][1] if heads[0][0] <= now - LATE_S else 0

    def _positions(self) -> tuple[Positions, Positions]:
        """The readers that are attached to a segment, and those that are between two requests.

        A reader of an open segment lacks bytes of that segment only, even if there are later ones.
        """
        segments = self.channel.segments
        head = after = self.published
        attached: Positions = {}
        ends: dict[int, int] = {}
        reading = self.channel.reading.used
        oldest = min([seq for seq, _ in self.finished.values()], default=self.channel.next_seq)
        for seq in sorted(segments, reverse=True):
            if head - after > FAR_BYTES or (len(attached) == reading and seq < oldest):
                break
            segment = segments[seq]
            ends[seq] = after
            after -= segment.size + SEGMENT_BYTES * segment.closed
            for cursor in segment.cursors:
                if not getattr(cursor, "paces", False):
                    continue  # a subscription in the process, or a client of HLS: it never slows a publisher
                reader = cast(PacedReader, cursor)
                lacks = (head - after if segment.closed else segment.size) - reader.sent
                attached[reader.connection] = seq, reader.sent, lacks
        between = {
            connection: (seq + 1, 0, head - ends[seq])
            for connection, (seq, _) in self.finished.items()
            if seq in ends and connection not in attached and not connection.deaf
        }
        return attached, between


class Pacing:
    """The paces of all channels.

    Args:
        wait_s: the longest time for which a publisher waits at a stretch; 0: no publisher waits.
        on_fault: told of a fault of the server.
    """

    def __init__(self, wait_s: float, on_fault: OnFault) -> None:
        self.waits = 0  # how often the publishers of a channel had to wait
        self._wait_s, self._on_fault = wait_s, on_fault
        self._paces: dict[Channel, Pace] = {}  # the one that was tidied last is last
        self.holding: dict[Pace, None] = {}  # the paces whose publishers wait
        self._is_timed = False  # a look at them will come by itself
        self._advanced: dict[Pace, None] = {}  # whose readers were sent something since the last look

    def of(self, channel: Channel) -> Pace | None:
        """The pace of a channel to which a publisher writes; ``None`` if no publisher waits for readers."""
        if not self._wait_s:
            return None
        pace = self._paces.get(channel)
        if pace is None:
            pace = self._paces[channel] = Pace(channel)
        return pace

    def finished(self, channel: Channel, connection: Peer, seq: int) -> None:
        """Note that a reader was served a whole segment: it will request the next one."""
        pace = self._paces.get(channel)
        if pace is not None:
            pace.finished[connection] = seq, perf_counter()

    def published(self, pace: Pace, peer: Peer) -> None:
        """Look at the readers, since :attr:`Pace.look_at` is reached. If they are late, the publisher waits."""
        pace.look_at = pace.published + STEP_BYTES
        if not pace.held:
            now = perf_counter()
            if not pace.is_late(now):
                return
            self.waits += 1
            self.holding[pace] = None
            self._look_in(LOOK_S)
        pace.look_at = 0
        pace.hold(peer)

    def expire(self) -> None:
        """Tidy a share of the channels, and forget those that have ended. The sweeper calls this."""
        now = perf_counter()
        for channel, pace in list(islice(self._paces.items(), 1 + len(self._paces) // TIDY_SHARE)):
            del self._paces[channel]
            if not channel.ended:
                self._paces[channel] = pace  # behind all others
                pace.tidy(now)

    def advanced(self, channel: Channel) -> None:
        """Note that a reader was sent something; the publishers of its channel may be waiting for that."""
        pace = self._paces.get(channel)
        if pace is not None and pace in self.holding:
            if not self._advanced:
                asyncio.get_running_loop().call_soon(self._look_when_idle, perf_counter())
            self._advanced[pace] = None

    def _look_when_idle(self, begun: float) -> None:
        """Look at the channels whose readers have advanced, after a turn of the loop that found nothing else to do.

        A loop that has other work gains nothing by a publisher's bytes that come now: more of them make larger writes.
        """
        now = perf_counter()
        if self.holding and now - begun > IDLE_TURN_S:
            asyncio.get_running_loop().call_soon(self._look_when_idle, now)
            return
        advanced, self._advanced = self._advanced, {}
        for pace in advanced:
            if pace in self.holding:
                self._look_at(pace)

    def _look(self) -> None:
        """Look at all channels whose publishers wait: a reader may have left, or they have waited for long enough."""
        self._is_timed = False
        begun = perf_counter()
        for pace in list(self.holding):
            self._look_at(pace)
        if self.holding:
            self._look_in(max(LOOK_S, HELD_COST_FACTOR * (perf_counter() - begun)))

    def _look_in(self, pause_s: float) -> None:
        if not self._is_timed:
            self._is_timed = True
            asyncio.get_running_loop().call_later(pause_s, self._look)

    def _look_at(self, pace: Pace) -> None:
        """Read again from publishers whose readers are in time, or that have waited for long enough."""
        now = perf_counter()
        waited = now - pace.since >= self._wait_s
        try:
            waits = not (waited or pace.channel.ended) and pace.is_late(now)
        except Exception as error:
            self._on_fault("while a publisher waited", error)
            waits = False
        if not waits:
            del self.holding[pace]
            pace.release(self._on_fault, TRICKLE_BYTES if waited else None)
