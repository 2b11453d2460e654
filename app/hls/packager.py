"""Packagers: each follows a channel of which somebody has asked a playlist, and fills the channel's timeline.

**The problem.** A playlist needs what the server does not know of a segment: how long its media last, and where its
pictures begin. Nobody should pay for that in a channel that has no player of HLS.

**The idea.** A packager follows its channel as a reader does, with a cursor in one segment at a time. A scanner looks
at each byte once (:mod:`~tricklecast.app.hls.units`), and the timeline hears what it has found
(:mod:`~tricklecast.app.hls.timeline`). The media stay where they are, in the channel's window or in storage. A packager
begins with the newest segments that are held, so a server that was restarted with its data directory has a playlist at
once. It is forgotten when nobody has asked for :data:`IDLE_S`.

**Names and numbers outlive a packager.** The owner's packager *marks* the channel whenever a segment is over: a
:class:`~tricklecast.app.hls.timeline.Mark` says how the first segment of the playlist is counted. It is a fact, so
replicas and storage have it, too. A later packager of any process begins at that segment, and makes the same playlist
from the same bytes. If the segment is not held any more, numbers go on behind all that were used. A copy of another
server's channel (:class:`~tricklecast.app.core.copies.Copy`) is marked where it is, and keeps the mark when it is
promoted: players go on. A channel that has ended and drained has a recording (:mod:`~tricklecast.app.hls.recording`).

The first packager of a channel begins with what follows from the channel. The second in which it was created and its
epoch begin the names of media. A server without a data directory begins with epoch 1 again after a restart; the second
then tells a cache that the media are others. Seq 0 has the number of eighths of a second from 2026 until that second.
Segments are longer than an eighth of a second, so numbers never go back, over epochs and restarts. Where they would
(shorter segments, or a publisher that begins at a high seq), they begin behind all that the name has used in this
process. Discontinuity sequence numbers begin at the epoch, since older players count up to them.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from hashlib import blake2b
from typing import Final, Protocol

from tricklecast.app.core.copies import Copy
from tricklecast.app.core.facts import MAX_MARK
from tricklecast.app.core.limits import Limit
from tricklecast.app.core.registry import Registry
from tricklecast.app.core.results import Cause, Refusal
from tricklecast.app.core.rules import OwnedChannel
from tricklecast.app.core.segment import COMPLETE, SKIPPED, Segment
from tricklecast.app.core.state import Channel, Found, Ready
from tricklecast.app.hls.codecs import Stream
from tricklecast.app.hls.rendered import NOTHING, Kept, Rendered
from tricklecast.app.hls.timeline import MAX_KEPT, Mark, Timeline
from tricklecast.app.hls.units import Scanner, scanner, tables_of
from tricklecast.trickle.media.clock import read_prft, read_temi
from tricklecast.trickle.media.containers import SNIFF_BYTES, Container, sniff

IDLE_S: Final = 60.0
"""A packager is forgotten when nobody has asked for this time. A player asks at least once in a target duration."""

BACKLOG: Final = 16
BACKLOG_BYTES: Final = 32 << 20
"""The first playlist begins with this many of a channel's closed segments, or with this many bytes of them, at most."""

BACKLOG_SEQS: Final = 256
"""They are looked for among this many seqs below the head."""

COUNTED_FROM_S: Final = 1_767_225_600
COUNTED_HZ: Final = 8
"""Seq 0 has the number of eighths of a second since this time. Numbers have 31 bits until 2034; some players take no
more."""

HEAD_BYTES: Final = 64 << 10
"""Bytes at the beginning of a segment that are kept until its first unit is found. They hold the time of capture."""

RUN_BYTES: Final = 16 << 10
"""Bytes that are scanned in one turn of the event loop. That takes 0.1 ms, or 7 ms if they are all smallest boxes."""

ROUNDS: Final = 4
"""States of the playlist for which requests are counted. As many players wait as have asked for one of these states."""

MAX_POLLS: Final = 10_000
"""Players that do not wait are counted by their requests of one target duration, of which this many are kept."""

PLAYER_TARGETS: Final = 3
"""After this many target durations without any request there is no player."""

WAKE_BATCH: Final = 64
"""Waiting requests that are answered in one turn of the event loop."""

EVENTS: Final = 32
"""Playlists that begin in the past of which players are served at a time."""

EVENT_BYTES: Final = 32 << 20
"""For one request for such a playlist the server looks at segments that have closed until it has seen this many bytes
of them. The playlist then ends until somebody asks again."""

NAMES: Final = 10_000
"""Channels that were packaged lately, whose numbers are remembered."""

INITS: Final = 8
"""Init segments of a channel that are kept, the newest."""


class Waiter(Protocol):
    """A request that waits for something new."""

    def go_on(self) -> None:
        """Look again whether there is now what the request waits for."""


class Packager:
    """Follows one epoch of a channel.

    Args:
        registry: counts it as a reader of the channel.
        first_numbers: of the first packager of the channel: the prefix of names, the media sequence number of seq 0,
            and the first discontinuity sequence number; called when the first media have come.
        clock: the registry's time, seconds. to_us: turns it into microseconds since 1970.
        defer: calls a function in a later turn of the event loop.
        live: the packager of the live edge, if this one begins in the past; it cuts and counts as that one does.
        first: the seq of the segment with which it begins then.
    """

    def __init__(
        self,
        channel: Channel,
        registry: Registry,
        first_numbers: Callable[[], tuple[str, int, int]],
        *,
        clock: Callable[[], float],
        to_us: Callable[[float], int],
        defer: Callable[[Callable[[], None]], object],
        live: Packager | None = None,
        first: int = 0,
    ) -> None:
        self.channel = channel
        self.is_event = live is not None  # its playlist begins in the past, and keeps all segments
        self.timeline = Timeline(self._is_held, keeps=self.is_event)
        self.container: Container | None = None  # of the media so far
        self.inits: OrderedDict[str, bytes] = OrderedDict()  # by name
        self.unsuited = ""  # why no player of HLS can play the media; empty if there is no reason
        self.ended = False  # nothing more will come
        self.version = 0  # counts the changes of the playlist
        self.streams: list[Stream] = []  # what the newest segment that ended has
        self.frame_rate = 0.0  # of its pictures; 0 if it has none
        self.captions: set[str] = set()  # channels of captions that any segment so far has had
        self.kept = Kept()  # files of renditions (renditions.py)
        self.track_playlists: dict[int, Rendered] = {}  # as the next ones, of single tracks
        self.pictures: Rendered = NOTHING  # the playlist of key pictures, as the next one (pictures.py)
        self.announced: Rendered = NOTHING  # the multivariant playlist, as the next one (multivariant.py)
        self.rendered: Rendered = NOTHING  # the playlist in its newest state that somebody has asked for (playlist.py)
        self.waiting: dict[Waiter, None] = {}  # requests that are called at the next change
        self.began_at = self.asked_at = clock()  # when somebody has asked first, and last
        self._registry, self._first_numbers = registry, first_numbers
        self._clock, self._to_us, self._defer = clock, to_us, defer
        self._prefix = ""  # of the names of media, without the rule; empty until there are media
        self._init = b""  # the newest init segment
        self._mark = None if self.is_event else Mark.read(channel.playlist)  # with which it goes on
        self._ready_at = 0  # the seq up to which a packager that begins at the mark has to come
        self._told: deque[str] = deque(maxlen=2)  # the newest marks; those of a replica are told to nobody
        # Players, as they are counted: requests for each of the newest states, and the times of others.
        self._rounds: OrderedDict[tuple[int, int | None], int] = OrderedDict()
        self._polls: deque[float] = deque(maxlen=MAX_POLLS)
        self._players = 0  # as the channel was told last
        # The segment that it follows, or has followed last.
        self._segment: Segment | None = None
        self._attached = False  # its cursor is in the segment
        self._scheduled = False  # it has a turn of the event loop
        self._scan: Scanner | None = None  # of the segment, when its container is known
        self._first = bytearray()  # the beginning of the segment, up to HEAD_BYTES
        self._begun = False  # the timeline has begun the segment
        self._over = False  # the rest of the segment is not scanned: it is no media, or the scanner gave up
        self._fed = 0  # frames of the segment that were taken
        self._new = bytearray()  # bytes of these that are not scanned yet
        self._to_call: deque[Waiter] = deque()  # requests that are called in the next turns
        # Of one that begins in the past:
        self._scanned = 0  # bytes of closed segments since somebody asked last
        self._is_paused = False  # it has scanned enough, until somebody asks again
        if live is None:
            self._go_to(self._first_segment(), 0)
        else:
            self._prefix, self._init = live._prefix, live._init
            self.timeline.adopt(live.timeline)
            self._go_to(channel.after(max(first, channel.next_seq - MAX_KEPT) - 1)[0], 0)

    # Asked from above.

    @property
    def ready(self) -> bool:
        """Whether a playlist can be made. That of a channel that has ended has all of it."""
        segment, timeline = self._segment, self.timeline
        if self.is_event:
            return bool(timeline.segments) and timeline.segments[0].duration is not None
        if self.channel.ended and not self.ended:
            return False
        return timeline.target_s > 0 and (self.ended or segment is None or segment.seq >= self._ready_at)

    @property
    def in_step(self) -> bool:
        """Whether the playlist is that of the channel's owner, which goes on to mark it: they agree about a mark."""
        return self.ready and self.channel.playlist in self._told

    @property
    def prefix(self) -> str:
        """The beginning of the names of media: second, epoch and rule, for example ``6b49d200.1.2.400``."""
        return f"{self._prefix}.{self.timeline.rule}"

    @property
    def next_part(self) -> tuple[int, int]:
        """Seq and number of the next part, at which the playlist hints."""
        last = self.timeline.last
        if last is not None and last.duration is None:
            return last.seq, last.first_part + len(last.parts)
        return (0 if self._segment is None else self._segment.seq), 0

    def look_on(self) -> None:
        """Somebody asks: look at more segments."""
        self.asked_at, self._scanned = self._clock(), 0
        if self._is_paused:
            self.wake()

    def served(self, msn: int | None, part: int | None) -> None:
        """Count a player that gets the playlist, after it has waited for this part, or at once."""
        if msn is None:
            self._polls.append(self._clock())
        else:
            self._rounds[msn, part] = self._rounds.get((msn, part), 0) + 1
            if len(self._rounds) > ROUNDS:
                self._rounds.popitem(last=False)
        self.count_players()

    def count_players(self) -> None:
        """Tell the channel how many players there are.

        Each asks once for each state that it waits for, or once in about a target duration.
        """
        now, players, target_s = self._clock(), 0, max(1, self.timeline.target_s)
        if not self.ended and now - self.asked_at <= PLAYER_TARGETS * target_s:
            while self._polls and now - self._polls[0] > target_s:
                self._polls.popleft()
            players = max(self._rounds.values(), default=0) + len(self._polls)
        self.channel.players_beside += players - self._players
        self._players = players

    def has(self, msn: int, part: int | None) -> bool:
        """Whether a player that waits for this segment, or part of it, is answered now."""
        return self.ended or self.timeline.has(msn, part)

    def find(self, seq: int, at: int, part: int | None) -> tuple[Segment, int, int] | None:
        """The segment of the channel that holds a media segment or part, and its bytes there: from, to."""
        place = self.timeline.find(seq, at, part)
        segment = None if place is None else self._held(seq)
        return None if place is None or segment is None else (segment, *place)

    def close(self) -> None:
        """Let go of the channel. Requests that wait are called for the last time."""
        self.ended = True
        self.count_players()
        self._detach()
        self._changed()

    # A cursor.

    def wake(self) -> None:
        """The segment has more bytes, or has closed: look at it in a later turn."""
        if not self._scheduled:
            self._scheduled = True
            self._defer(self._run)

    def evict(self) -> None:
        """The memory of the segment is needed: leave it."""
        self._detach()
        self.wake()

    # Mechanics.

    def _held(self, seq: int) -> Segment | None:
        """A segment of the window or of storage."""
        channel = self.channel
        return channel.segments.get(seq) or (None if channel.retained is None else channel.retained.find(seq))

    def _is_held(self, seq: int) -> bool:
        channel, retained = self.channel, self.channel.retained
        if seq in channel.segments:
            return True
        if retained is not None:
            return retained.following(seq) == seq
        # What leaves a replica's window is in its owner's storage, if there is one.
        return not channel.belongs and self._registry.storage is not None

    def _first_segment(self) -> object:
        """The segment with which the first playlist begins, as the core resolves it."""
        channel, mark = self.channel, self._mark
        if mark is not None:
            self._init = bytes.fromhex(mark.init)
            if 0 < channel.next_seq - mark.seq <= BACKLOG_SEQS:
                found = channel.resolve(mark.seq)
                if isinstance(found, Ready):
                    self._ready_at = min(mark.next_seq, channel.next_seq)
                    return found
        start, size, number = channel.next_seq, 0, 0
        newest = list(channel.listed(max(0, start - BACKLOG_SEQS), 0, int))
        for one in sorted(newest, reverse=True):
            if number == BACKLOG or size + one.size > BACKLOG_BYTES:
                break
            if one.size:
                start, size, number = one.seq, size + one.size, number + (one.closed_us is not None)
        return channel.resolve(start)

    def _go_to(self, found: object, missed: int) -> None:
        """Follow the next segment, as the core has resolved it; or end with the channel."""
        self.timeline.miss(missed)
        self._scan = None
        self._first, self._fed, self._over, self._begun = bytearray(), 0, False, False
        self._new.clear()
        if not isinstance(found, Found):
            self.ended = True
            self.timeline.settle()
            self._changed()
            return
        segment = self._segment = found.segment
        self.version += 1  # another part follows
        self._registry.attach(self, self.channel, segment)
        self.channel.players_beside -= 1
        self._attached = True
        if not segment.closed:
            self.timeline.settle()
        if self.ready and not self.is_event:
            self._tell(segment.seq)
        if segment.source is not None:
            segment.source.more()
        else:
            self.wake()

    def _tell(self, next_seq: int) -> None:
        """Mark the channel: all segments before this one are over."""
        channel, timeline = self.channel, self.timeline
        first = timeline.begun[0]
        init = self.inits.get(first.init)
        text = ""
        if init is not None or not first.init:
            behind = next_seq, timeline.next_msn, timeline.next_discontinuities
            assert timeline.rule is not None, "a playlist has a rule"
            numbers = *timeline.rule, timeline.origin, *first[:6], *behind
            text = str(Mark(self._prefix, (init or b"").hex(), *numbers))
        self._told.append(text if len(text) <= MAX_MARK else "")
        if isinstance(channel, OwnedChannel | Copy):
            channel.mark_playlist(self._told[-1], self._clock())

    def _detach(self) -> None:
        segment = self._segment
        if self._attached and segment is not None:
            self._attached = False
            self._registry.detach(self, self.channel, segment)
            self.channel.players_beside += 1
            if segment.source is not None:
                segment.source.more()

    def _run(self) -> None:
        """Scan new bytes, and go on to the next segment when this one is over."""
        self._scheduled = False
        segment = self._segment
        if self.ended or segment is None:
            return
        version = self.timeline.version
        if self._is_paused:
            self._is_paused = False
        elif self._attached:
            self._look(segment)
            if not self._has_seen_all_of(segment):
                self.wake()
            elif not segment.is_loaded and segment.source is not None:
                segment.source.more()
            elif segment.closed:
                self._close(segment)
                self._detach()
                self._scanned += segment.size
        else:
            self.timeline.lose(segment.seq)
        if not self._attached:
            if self.is_event and self._scanned >= EVENT_BYTES:
                self._is_paused = True
            else:
                self._go_to(*self.channel.after(segment.seq))
        if version != self.timeline.version:
            self._changed()

    def _look(self, segment: Segment) -> None:
        """Scan the new bytes that one turn allows, and cut the units."""
        if not self._over:
            self._scan_some(segment)
        if self._over:
            self._fed = len(segment.frames)
            self._new.clear()
        if self._scan is not None and self._scan.units:
            self._cut(segment, self._scan)

    def _scan_some(self, segment: Segment) -> None:
        while self._fed < len(segment.frames) and len(self._new) < RUN_BYTES:
            self._new += b"".join(segment.payload(self._fed, self._fed + 1))
            self._fed += 1
        data = bytes(self._new[:RUN_BYTES])
        del self._new[:RUN_BYTES]
        if self._scan is None:
            self._first += data
            if not self._first or (len(self._first) < SNIFF_BYTES and not self._is_whole(segment)):
                return
            kind = sniff(self._first)
            self._scan = scanner(kind, self._init)
            if self._scan is None:
                self._over = True
                if self.container is None and segment.size and not self.unsuited:
                    self.unsuited = "HLS needs MPEG-TS or fragmented MP4, and this channel has neither"
                    self._changed()
                return
            self.container = kind
            data = bytes(self._first)
        elif len(self._first) < HEAD_BYTES:
            self._first += data
        if data:
            self._scan.feed(data)
        if obstacle := self._scan.obstacle:
            self._scan, self._over, self.unsuited = None, True, obstacle
            self._changed()
            return
        if self._scan.units:
            self.unsuited = ""
        self._over = self._scan.gave_up

    def _has_seen_all_of(self, segment: Segment) -> bool:
        """Whether all that has arrived so far was scanned."""
        return not self._new and self._fed == len(segment.frames)

    def _is_whole(self, segment: Segment) -> bool:
        """Whether nothing more of the segment will arrive."""
        return segment.closed and segment.is_loaded and self._has_seen_all_of(segment)

    def _cut(self, segment: Segment, scan: Scanner) -> None:
        """Begin the media segment if that is due, and add the parts that are whole."""
        timeline = self.timeline
        if not self._begun:
            self._begin(segment, scan)
        timeline.cut(scan, scan.finish(segment.size) if self._is_whole(segment) else None)

    def _begin(self, segment: Segment, scan: Scanner) -> None:
        """Begin a segment in the timeline: its first unit is known."""
        self._begun = True
        if not self._prefix:
            self._count(segment.seq)
        assert self.container is not None, "its scanner was chosen by that"
        captured_us = (read_prft if self.container is Container.FMP4 else read_temi)(bytes(self._first))
        is_mapped = self.container is Container.MPEGTS and bool(self._init)  # no playlist can take an EXT-X-MAP back
        init = self._keep_init(tables_of(bytes(self._first)) if is_mapped else scan.init)
        self.timeline.begin(segment.seq, scan, self.container, init, captured_us or self._to_us(segment.opened_at))

    def _count(self, seq: int) -> None:
        """Find the numbers of this segment, which is the first one with media."""
        mark, timeline = self._mark, self.timeline
        if mark is None:
            self._prefix, origin, discontinuities = self._first_numbers()
            timeline.count_from(origin, discontinuities, None)
            return
        self._prefix = mark.prefix
        if self._ready_at and seq == mark.seq:
            timeline.resume(mark)
        else:
            self._ready_at = 0
            timeline.count_from(max(mark.origin, mark.next_msn - seq), mark.next_discontinuities + 1, mark.rule)

    def _keep_init(self, init: bytes) -> str:
        """Keep an init segment, and return its name: equal ones have the same."""
        if not init:
            return ""
        self._init = init
        name = blake2b(init, digest_size=6).hexdigest()
        self.inits[name] = init
        self.inits.move_to_end(name)
        if len(self.inits) > INITS:
            self.inits.popitem(last=False)
        return name

    def _close(self, segment: Segment) -> None:
        """End a closed segment of which all is scanned."""
        scan, self._scan = self._scan, None
        if scan is not None and self._begun:
            size = scan.finish(segment.size)
            self._describe(scan)
            if scan.units:
                self.timeline.close(scan, size, complete=segment.state is COMPLETE)
            else:
                self.timeline.lose(segment.seq)
        elif scan is not None and scan.start:
            self._init = scan.init  # it has nothing else
        else:
            self.timeline.miss(1, breaks=segment.size > 0 and segment.state is not SKIPPED)

    def _describe(self, scan: Scanner) -> None:
        """Note what the streams of a segment are. One that begins with no key picture does not tell its codec."""
        known = {one.number: one for one in self.streams if one.codec}
        self.streams = [one if one.codec else known.get(one.number, one) for one in scan.streams] or self.streams
        self.frame_rate = scan.frame_rate
        self.captions.update(name for one in self.streams for name in one.captions)

    def _changed(self) -> None:
        self.version += 1
        if self.waiting:
            if not self._to_call:
                self._defer(self._call_waiting)
            self._to_call += self.waiting
            self.waiting.clear()

    def _call_waiting(self) -> None:
        """Call the requests that have waited for a change, some in each turn. A request may then wait again."""
        for _ in range(min(WAKE_BATCH, len(self._to_call))):
            self._to_call.popleft().go_on()
        if self._to_call:
            self._defer(self._call_waiting)


class Packagers:
    """The packagers of a server, and the numbers that names of channels have used.

    Args:
        registry, clock, to_us, defer: as for :class:`Packager`.
    """

    def __init__(
        self,
        registry: Registry,
        clock: Callable[[], float],
        to_us: Callable[[float], int],
        defer: Callable[[Callable[[], None]], object],
    ) -> None:
        self._registry, self._clock, self._to_us, self._defer = registry, clock, to_us, defer
        self._packagers: dict[str, Packager] = {}  # by the channel's name
        # By the channel's name and the first seq, those of playlists that begin in the past, in the order of requests.
        self._events: OrderedDict[tuple[str, int], Packager] = OrderedDict()
        # By the channel's name, the media and discontinuity sequence numbers behind all that are used.
        self._used: OrderedDict[str, tuple[int, int]] = OrderedDict()

    def __len__(self) -> int:
        """Channels that somebody has asked a playlist of lately."""
        return len(self._packagers)

    def of(self, channel: Channel) -> Packager:
        """The packager of a channel, which is made if there is none."""
        found = self._packagers.get(channel.name)
        if found is not None and found.channel is not channel:
            self._forget(found)
            found = None
        if found is None:
            found = self._packagers[channel.name] = self._packager(channel)
        found.asked_at = self._clock()
        return found

    def of_event(self, live: Packager, first: int) -> Packager | Refusal:
        """The packager of a playlist that begins with this seq.

        Args:
            live: the packager of the channel's live edge, which is ready.

        Returns:
            A refusal: players wait for too many other ones.
        """
        key = live.channel.name, first
        found = self._events.pop(key, None)
        if found is not None and (found.channel is not live.channel or found.prefix != live.prefix):
            found.close()
            found = None
        if found is None:
            if len(self._events) >= EVENTS:
                oldest = next(iter(self._events))
                if self._events[oldest].waiting:
                    return Refusal(Cause.LIMIT, limit=Limit.READERS)
                self._events.pop(oldest).close()
            found = self._packager(live.channel, live, first)
        self._events[key] = found  # the last one
        found.look_on()
        return found

    def events_of(self, channel: Channel) -> list[Packager]:
        """The packagers of playlists of a channel that begin in the past."""
        return [found for found in self._events.values() if found.channel is channel]

    def expire(self, now: float) -> None:
        """Forget packagers that nobody asks any more, those whose channel is gone, and those of replicas that err."""
        for found in list(self._packagers.values()):
            is_astray = not isinstance(found.channel, OwnedChannel | Copy) and not found.in_step
            idle = now - (found.began_at if is_astray else found.asked_at) > IDLE_S and not found.waiting
            found.count_players()
            if idle or not self._is_known(found.channel):
                self._forget(found)
        for key, found in list(self._events.items()):
            found.count_players()
            if (now - found.asked_at > IDLE_S and not found.waiting) or not self._is_known(found.channel):
                self._events.pop(key).close()

    def _is_known(self, channel: Channel) -> bool:
        return self._registry.channels.get(channel.name) is channel

    def _packager(self, channel: Channel, live: Packager | None = None, first: int = 0) -> Packager:
        return Packager(
            channel,
            self._registry,
            lambda: self._first_numbers(channel),
            clock=self._clock,
            to_us=self._to_us,
            defer=self._defer,
            live=live,
            first=first,
        )

    def _first_numbers(self, channel: Channel) -> tuple[str, int, int]:
        """They follow from the channel, unless its name has had higher ones here."""
        created_s = round(self._to_us(channel.created_at) / 1e6)
        msn, discontinuities = self._used.get(channel.name, (0, 0))
        origin = max(msn, (created_s - COUNTED_FROM_S) * COUNTED_HZ)
        return f"{max(0, created_s):x}.{channel.epoch}", origin, max(discontinuities, channel.epoch)

    def _forget(self, found: Packager) -> None:
        name, timeline = found.channel.name, found.timeline
        del self._packagers[name]
        if timeline.next_msn:
            msn, _ = self._used.get(name, (0, 0))
            self._used[name] = max(msn, timeline.next_msn), timeline.next_discontinuities + 1
            self._used.move_to_end(name)
            if len(self._used) > NAMES:
                self._used.popitem(last=False)
        found.close()
