"""Recordings: the playlist of a channel that has ended, over all that storage has of it.

**The problem.** A packager (:mod:`~tricklecast.app.hls.packager`) reads each byte of a live channel, and lists its
newest segments. A recording of hours is gigabytes, and who asks for it wants a playlist now, with all of it.

**The idea.** Media say when they begin. A segment that its publisher ended lasts until the next one begins, so the
first :data:`HEAD_BYTES` of each are enough. A segment is read wholly only if its end does not follow from the next one:
the last one, one that broke off, and one before a hole or a jump. A thread reads, :data:`BATCH` segments at a time, so
that readers of other stored segments have their turns.

**What is told of it** in the multivariant playlist is what the last segment that was read wholly is, as that of a live
channel tells of the newest one. If players take the tracks of MP4 one by one, each has a playlist
(:mod:`~tricklecast.app.hls.renditions`), and the thread makes a file of a track when somebody asks for it.

Each segment of the channel is one media segment, which is never cut: its name has the rule ``0.0``, which no packager
makes. A recording never changes, but for segments that retention removes: then it is made anew. It is forgotten when
nobody has asked for :data:`IDLE_S`.
"""

from __future__ import annotations

import logging
import math
from asyncio import Task, get_running_loop
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from statistics import median
from typing import ClassVar, Final, Protocol, TypeAlias

from tricklecast.app.clock import to_us
from tricklecast.app.core.registry import Registry, Restored
from tricklecast.app.core.segment import COMPLETE, Segment
from tricklecast.app.core.state import Channel, SegmentSummary
from tricklecast.app.hls.codecs import SOUND, TEXT, Stream
from tricklecast.app.hls.demuxed import OPENING_BYTES, default_size, track_media, track_packets
from tricklecast.app.hls.multivariant import announced
from tricklecast.app.hls.packager import IDLE_S, Waiter
from tricklecast.app.hls.pictures import VOD, Head, picture_playlist
from tricklecast.app.hls.playlist import VERSION, date_of, init_name
from tricklecast.app.hls.rendered import NOTHING, QUERY, Kept, Rendered
from tricklecast.app.hls.renditions import MARK, MAX_FILE
from tricklecast.app.hls.texts import text_file
from tricklecast.app.hls.timeline import CLOCK_SHARE, JUMP_S, Mark, Picture, lengths_of, picture_of
from tricklecast.app.hls.units import WRAP_S, Scanner, scanner, tables_of
from tricklecast.trickle.media.clock import read_prft, read_temi
from tricklecast.trickle.media.containers import Container, sniff
from tricklecast.trickle.wire import CUT, HLS_ROUTE, LEFT_OUT, NO_LIFE

logger = logging.getLogger("tricklecast.hls")

HEAD_BYTES: Final = 64 << 10
"""Bytes of each segment that are read: tables or an init segment, the time of capture, and the first picture's time."""

MAX_PICTURE: Final = 2 << 20
"""A segment is read on until its first picture is whole, for at most this many bytes. A longer one is not told of."""

BATCH: Final = 32
"""Segments that are looked at in one call of the thread, which other readers wait for. It takes a few milliseconds."""

MAX_SEGMENTS: Final = 20_000
"""A playlist names this many segments, the newest: eleven hours of 2 s, and a text of a megabyte."""

MAX_RECORDINGS: Final = 32
"""Recordings whose playlists are in memory, a few megabytes each."""

MAX_INITS: Final = 64
"""Different init segments of a recording. Segments that would need a further one are left out."""

USUAL_TIMES: Final = 1.5
"""A segment that would last this many times the usual is read wholly: there may be a hole behind it."""

MAX_MAKING: Final = 8
"""Files of tracks of one recording that the thread is to make. Who asks for a further one waits."""

MAX_TRACKS: Final = 8
"""Playlists of tracks of one recording that are kept."""

WHOLE_SEGMENTS: Final = "0.0"
"""The rule in the names of files: a segment is never cut."""


class Stored(Protocol):
    """The stored segments of a channel that has ended: a :class:`~tricklecast.app.core.state.Retained`, and more.

    (It does not inherit from that one, which is compiled.)

    Attributes:
        thread: reads the files. seqs: of its segments, ascending.
    """

    seqs: list[int]

    @property
    def thread(self) -> Executor: ...

    def listed(self, seq: int, since_us: int) -> Iterator[SegmentSummary]:
        """As in ``Retained``, like the next three."""

    def find(self, seq: int) -> Segment | None: ...
    def following(self, seq: int) -> int | None: ...
    def has(self, seq: int, opened_at: float) -> bool: ...

    def opener(self, seq: int) -> Callable[[], Iterator[bytes]] | None:
        """A function that opens a segment for a thread, and reads it in pieces; ``None`` if it is gone."""


@dataclass(slots=True)
class Piece:
    """A segment of the channel in the playlist.

    Attributes:
        start, end: its bytes in the channel's segment, without an init segment.
        time: when its media begin, in seconds of the stream's own clock. duration: in seconds; 0 until it is known.
        init: the name of its init segment; empty in MPEG-TS.
        captured_us: its date, microseconds since 1970. cut: why it is not whole; empty if its publisher ended it.
        picture: its first picture, if that is a key picture.
        at, gap: as of a live media segment: it is never cut, and never missing.
    """

    seq: int
    container: Container
    start: int
    end: int
    time: float
    init: str
    extension: str
    captured_us: int
    cut: str
    picture: Picture | None = None
    duration: float = 0.0
    discontinuity: bool = False
    at: ClassVar[int] = 0
    gap: ClassVar[bool] = False


class Recording:
    """The playlist of one channel that has ended, and the files that it names.

    Args:
        channel: the channel as it was, for those who read its segments. stored: its segments.
        now: seconds. kept: the newest files of tracks, of all recordings.

    Attributes:
        ready: whether the playlist is there. unsuited: why there is none; empty if there is no reason.
        rendered: the playlist. target_s: its target duration. announced: the multivariant playlist.
        pictures: the playlist of key pictures.
        streams, container, frame_rate, captions: what the last segment is that was read wholly.
        waiting: requests that are called when it is ready, or when a file of a track is.
    """

    def __init__(self, channel: Channel, stored: Stored, now: float, kept: Kept) -> None:
        self.channel, self.stored = channel, stored
        self.announced = self.pictures = NOTHING
        self.streams: list[Stream] = []
        self.container: Container | None = None
        self.frame_rate = 0.0
        self.captions: set[str] = set()
        self._kept = kept
        self._tracks: dict[int, Rendered] = {}  # the playlists of tracks
        self._making: dict[str, Task[None]] = {}  # by the name of the file of a track
        self._failed: set[str] = set()  # files of tracks that cannot be made
        created_s = max(0, round(to_us(channel.created_at) / 1e6))
        self.prefix = f"{created_s:x}.{channel.epoch}.{WHOLE_SEGMENTS}"
        self.rendered, self.target_s = NOTHING, 1
        self.ready, self.unsuited = False, ""
        self.waiting: dict[Waiter, None] = {}
        self.inits: dict[str, bytes] = {}  # by name
        self.asked_at = now  # when somebody has asked last
        self._bounds = _bounds(stored)  # with other ones it is made anew
        self._pieces: dict[int, Piece] = {}
        self._left_out: list[int] = []  # segments without media that players of HLS can play
        self._init = b""  # the newest init segment
        self._task: Task[None] = get_running_loop().create_task(self._make(), name="recording")

    def is_of(self, stored: Stored) -> bool:
        """Whether it is of this channel, and of all its segments: none was removed, or stored late, since."""
        return self.stored is stored and self._bounds == _bounds(stored)

    def find(self, seq: int) -> tuple[Segment, int, int] | None:
        """A segment of the channel, and its bytes that the playlist names: from, to; ``None`` if it is gone."""
        piece, segment = self._pieces.get(seq), self.stored.find(seq)
        return None if piece is None or segment is None else (segment, piece.start, piece.end)

    def playlist_of(self, track: int) -> Rendered:
        """The playlist of one of its tracks: the same, with other names."""
        found = self._tracks.get(track)
        if found is None:
            kind = next((one.kind for one in self.streams if one.number == track), b"")
            text = self.rendered.raw.replace(f"/{self.prefix}-", f"/{self.prefix}{MARK}{track}-")
            if kind in (SOUND, TEXT):
                text = text.replace(f".m4s{QUERY}", f".m4a{QUERY}")
            if kind == TEXT:
                lines = (line for line in text.splitlines(keepends=True) if not line.startswith("#EXT-X-MAP:"))
                text = "".join(lines).replace(f".m4a{QUERY}", f".vtt{QUERY}")
            found = self._tracks[track] = Rendered(0, text)
            if len(self._tracks) > MAX_TRACKS:
                del self._tracks[next(iter(self._tracks))]
        return found

    def track_file(self, name: str, track: int, seq: int, *, is_text: bool = False) -> bytes | None:
        """A media segment of one track; ``None``: it is being made, or cannot be (:meth:`cannot`).

        Args:
            name: of the file. seq: of the channel's segment. is_text: it is a file of subtitles.
        """
        found = self._kept.get(self._key(name))
        if found is None and name not in self._making and not self.cannot(name, seq) and len(self._making) < MAX_MAKING:
            self._making[name] = get_running_loop().create_task(
                self._make_file(name, track, seq, is_text=is_text), name="recording"
            )
        return found

    def cannot(self, name: str, seq: int) -> bool:
        """Whether the file of a track cannot be made: its segment is gone, or too long, or cannot be divided."""
        return name in self._failed or seq not in self._pieces or self.stored.opener(seq) is None

    def close(self) -> None:
        """Stop reading, and call those who wait."""
        for task in (self._task, *self._making.values()):
            task.cancel()
        self._call()

    def _key(self, name: str) -> str:
        return f"{self.channel.name}/{name}"

    async def _make_file(self, name: str, track: int, seq: int, *, is_text: bool) -> None:
        piece, opener = self._pieces[seq], self.stored.opener(seq)
        made = None
        if opener is not None and piece.end - piece.start <= MAX_FILE:
            init = self.inits.get(piece.init, b"")
            make = _text_of if is_text else _track_of
            made = await get_running_loop().run_in_executor(self.stored.thread, make, opener, piece, init, track)
        if made is None:
            self._failed.add(name)  # as many as there are segments and tracks, at most
        else:
            self._kept.add(self._key(name), made)
        del self._making[name]
        self._call()

    async def _make(self) -> None:
        loop, thread = get_running_loop(), self.stored.thread
        summaries = [one for one in self.stored.listed(0, 0) if one.size][-MAX_SEGMENTS:]
        openers = [(one, opener) for one in summaries if (opener := self.stored.opener(one.seq)) is not None]
        pieces: list[Piece] = []
        try:
            for first in range(0, len(openers), BATCH):
                pieces += await loop.run_in_executor(thread, self._look, openers[first : first + BATCH])
            by_seq = {one.seq: opener for one, opener in openers}
            unknown = self._measure(pieces)
            for first in range(0, len(unknown), BATCH):
                batch = [(one, by_seq[one.seq]) for one in unknown[first : first + BATCH]]
                await loop.run_in_executor(thread, self._read, batch)
            pieces = [one for one in pieces if one.duration > 0]
            self._break(pieces)
            self._pieces = {one.seq: one for one in pieces}
            if pieces:
                self._left_out = [seq for seq in by_seq if seq not in self._pieces]
                await loop.run_in_executor(thread, self._render, pieces)
            elif not self.unsuited:
                self.unsuited = "Storage has no media of this channel that players of HLS can play"
        except Exception:
            self.unsuited = "The recording cannot be read now"
            logger.exception("the recording of %r cannot be read", self.channel.name)
        self.ready = not self.unsuited or bool(self._pieces)
        if self.ready:
            self.unsuited = ""
        self._call()

    def _call(self) -> None:
        waiting = [*self.waiting]
        self.waiting.clear()
        for one in waiting:
            one.go_on()

    # In the thread.

    def _look(self, batch: Sequence[tuple[SegmentSummary, Callable[[], Iterator[bytes]]]]) -> list[Piece]:
        """Look at the beginnings of some segments, in their order."""
        found = []
        for summary, opener in batch:
            head, scan, kind = bytearray(), None, Container.OTHER
            for data in _pieces_of(opener):
                head += data
                if scan is None:
                    kind = sniff(head)
                    scan = scanner(kind, self._init)
                    if scan is None:
                        self.unsuited = self.unsuited or "HLS needs MPEG-TS or fragmented MP4, and this has neither"
                        break
                    data = bytes(head)
                scan.feed(data)
                if scan.gave_up or (scan.units and (_has_picture(scan) or len(head) > MAX_PICTURE)):
                    break
            if scan is None:
                continue
            if scan.units and len(head) == summary.size:
                scan.finish(summary.size)
            if obstacle := scan.obstacle:
                self.unsuited = obstacle
                continue
            # No playlist can take an EXT-X-MAP back.
            init = self._keep(tables_of(bytes(head)) if kind is Container.MPEGTS and self._init else scan.init)
            if scan.units and init is not None:
                found.append(_piece(summary, kind, scan, init, bytes(head[:HEAD_BYTES])))
        return found

    def _keep(self, init: bytes) -> str | None:
        """The name of the init segment of a segment; ``None`` if there are too many."""
        if not init:
            return ""
        self._init = init
        name = blake2b(init, digest_size=6).hexdigest()
        if name not in self.inits and len(self.inits) >= MAX_INITS:
            return None
        self.inits[name] = init
        return name

    def _read(self, batch: Sequence[tuple[Piece, Callable[[], Iterator[bytes]]]]) -> None:
        """Read segments wholly, whose ends do not follow from others."""
        for piece, opener in batch:
            scan = scanner(piece.container, self.inits.get(piece.init, b""))
            assert scan is not None, "its head was scanned"
            size = 0
            for data in _pieces_of(opener):
                scan.feed(data)
                size += len(data)
            piece.end = scan.finish(size)
            if scan.units:
                piece.duration = sum(lengths_of(scan))
                self._describe(scan, piece)

    def _describe(self, scan: Scanner, piece: Piece) -> None:
        """Note what the streams of a segment are. One that begins with no key picture does not tell its codec."""
        known = {one.number: one for one in self.streams if one.codec}
        self.streams = [one if one.codec else known.get(one.number, one) for one in scan.streams]
        self.container, self.frame_rate = piece.container, scan.frame_rate
        self.captions.update(name for one in self.streams for name in one.captions)

    def _render(self, pieces: Sequence[Piece]) -> None:
        """Write the playlists."""
        self.target_s = max(1, math.floor(max(one.duration for one in pieces) + 0.5))
        # As in the last live playlist, if nothing shifted it: a player that has seen that one finds its place.
        mark = Mark.read(self.channel.playlist)
        msn = pieces[0].seq + (0 if mark is None else mark.origin)
        self.rendered = Rendered(0, "\n".join(self._lines(pieces, msn)) + "\n")
        self.pictures = Rendered(0, picture_playlist(self.prefix, Head(self.target_s, VOD, msn, 0, True), pieces))
        self.announced = Rendered(0, announced(self, pieces, self.target_s))

    def _lines(self, pieces: Sequence[Piece], msn: int) -> Iterator[str]:
        yield "#EXTM3U"
        yield f"#EXT-X-VERSION:{VERSION}"
        yield f"#EXT-X-TARGETDURATION:{self.target_s}"
        yield "#EXT-X-PLAYLIST-TYPE:VOD"
        yield f"#EXT-X-MEDIA-SEQUENCE:{msn}"
        yield "#EXT-X-DISCONTINUITY-SEQUENCE:0"
        prefix, init = f"{HLS_ROUTE}/{self.prefix}", ""
        for one in pieces:
            if one.discontinuity:
                yield "#EXT-X-DISCONTINUITY"
            if one.init not in ("", init):
                init = one.init
                yield f'#EXT-X-MAP:URI="{prefix}-{init_name(one)}{QUERY}"'
            if one.cut:
                yield f"{CUT}:{one.cut}"
            yield f"#EXT-X-PROGRAM-DATE-TIME:{date_of(one.captured_us)}"
            yield f"#EXTINF:{one.duration:.5f},"
            yield f"{prefix}-{one.seq}.{one.extension}{QUERY}"
        if self._left_out:
            yield f"{LEFT_OUT}:{','.join(map(str, self._left_out))}"
        yield "#EXT-X-ENDLIST"

    # Durations.

    def _measure(self, pieces: Sequence[Piece]) -> list[Piece]:
        """Give each segment its duration that follows from the next one. Returns the others."""
        for one, following in pairwise(pieces):
            if not one.cut and following.seq == one.seq + 1 and following.container is one.container:
                one.duration = max(0.0, _between(one.time, following))
        usual = median([one.duration for one in pieces if one.duration] or [0.0])
        for one in pieces:
            if one.duration > USUAL_TIMES * usual:
                one.duration = 0.0
        return [one for one in pieces if not one.duration]

    def _break(self, pieces: Sequence[Piece]) -> None:
        """Find out where media do not go on. While they do, dates advance with them, as in a live playlist."""
        for one, following in pairwise(pieces):
            hole = _between(one.time + one.duration, following)
            other = (one.init, one.container) != (following.init, following.container)
            following.discontinuity = other or bool(one.cut) or abs(hole) > JUMP_S
            due_us = one.captured_us + round((one.duration + hole) * 1e6)
            if not following.discontinuity and abs(following.captured_us - due_us) > CLOCK_SHARE * one.duration * 1e6:
                following.captured_us = due_us


def _bounds(stored: Stored) -> list[int]:
    """The first and the newest segment."""
    return [*stored.seqs[:1], *stored.seqs[-1:]]


def _pieces_of(opener: Callable[[], Iterator[bytes]]) -> Iterator[bytes]:
    """The bytes of a segment, as far as they can be read: retention may remove it meanwhile."""
    try:
        yield from opener()
    except OSError as error:
        logger.warning("a stored segment cannot be read: %s", error)


def _track_of(opener: Callable[[], Iterator[bytes]], piece: Piece, init: bytes, track: int) -> bytes | None:
    """The media of one track of a stored segment; ``None`` if it cannot be read, or they cannot be divided."""
    data = b"".join(_pieces_of(opener))[piece.start : piece.end]
    if piece.container is Container.MPEGTS:
        return track_packets(data[:OPENING_BYTES], data, track)
    return track_media(data, track, default_size(init, track) if init else None) if data else None


def _text_of(opener: Callable[[], Iterator[bytes]], piece: Piece, init: bytes, track: int) -> bytes | None:
    """The subtitles of a stored segment; ``None`` if it cannot be read, or has none."""
    data = b"".join(_pieces_of(opener))[piece.start : piece.end]
    return text_file(data, init, track) if data else None


def _piece(summary: SegmentSummary, kind: Container, scan: Scanner, init: str, head: bytes) -> Piece:
    captured_us = (read_prft if kind is Container.FMP4 else read_temi)(head) or summary.opened_us
    # Shaka takes the type of sound from the name.
    extension = "ts" if kind is Container.MPEGTS else "m4s" if scan.has_video else "m4a"
    place = scan.start, summary.size, scan.units[0].time
    cut = "" if summary.state is COMPLETE else summary.state.value
    is_told = scan.has_video and scan.units[0].is_key and _has_picture(scan)
    picture = picture_of(scan, scan.start, scan.whole) if is_told else None
    return Piece(summary.seq, kind, *place, init, extension, captured_us, cut, picture)


def _has_picture(scan: Scanner) -> bool:
    """Whether the end of the first unit is known, if it is a picture."""
    first = scan.units[0]
    return not scan.has_video or scan.whole > first.at


def _between(time: float, following: Piece) -> float:
    """Seconds from a time until a segment begins; the clock of MPEG-TS starts again after a day."""
    between = following.time - time
    if following.container is Container.MPEGTS:
        between = (between + WRAP_S / 2) % WRAP_S - WRAP_S / 2
    return between


FindPast: TypeAlias = Callable[[str], tuple[Restored, Stored] | None]
"""Finds the last channel of a name in storage, and its segments, if it has ended."""


def past_channel(registry: Registry, about: Restored, stored: Stored, now: float) -> Channel:
    """A channel that has ended, to be read from storage. Nobody can publish to it, and the registry does not know it.

    Args:
        about: the channel. stored: its segments. now: the registry's time, seconds.
    """
    limits, budget, faults = registry.limits, registry.budget, registry.faults
    channel = Channel(about.name, about.epoch, about.content_type, now, NO_LIFE, limits, budget, faults)
    channel.restored(about.created_at, about.next_seq, about.playlist, about.lives)
    channel.retained, channel.ended = stored, True
    return channel


class Recordings:
    """The recordings of a server that somebody has asked for lately.

    Args:
        find: the channel in storage. clock: the registry's time, seconds.
    """

    def __init__(self, registry: Registry, find: FindPast, clock: Callable[[], float]) -> None:
        self._registry, self._find, self._clock = registry, find, clock
        self._recordings: dict[str, Recording] = {}  # by the channel's name
        self._kept = Kept()

    def __len__(self) -> int:
        """Recordings in memory."""
        return len(self._recordings)

    def channel_of(self, name: str) -> Channel | None:
        """The last channel of that name, if it has ended and storage has it; its recording is not made."""
        past = self._find(name)
        return None if past is None else past_channel(self._registry, *past, self._clock())

    def of(self, name: str) -> Recording | None:
        """The recording of the last channel of that name; ``None`` if there is none, or too many are in use."""
        now, past = self._clock(), self._find(name)
        found = self._recordings.get(name)
        if found is not None and (past is None or not found.is_of(past[1])):
            self._forget(name)
            found = None
        if past is None:
            return None
        if found is None:
            idle = [name for name, one in self._recordings.items() if not one.waiting]
            if len(self._recordings) >= MAX_RECORDINGS:
                if not idle:
                    return None
                self._forget(min(idle, key=lambda name: self._recordings[name].asked_at))
            channel = past_channel(self._registry, *past, now)
            found = self._recordings[name] = Recording(channel, past[1], now, self._kept)
        found.asked_at = now
        return found

    def expire(self, now: float) -> None:
        """Forget those that nobody asks for any more."""
        for name, found in list(self._recordings.items()):
            if now - found.asked_at > IDLE_S and not found.waiting:
                self._forget(name)

    def _forget(self, name: str) -> None:
        self._recordings.pop(name).close()
