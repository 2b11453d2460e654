"""Segments of media joined into one file that players can seek in, without re-encoding.

Every segment is opened by itself, so that a bad one harms no other; a time line moves its times behind those before;
:class:`File` is readable at any moment, and an ordinary, seekable file when it is closed in order.
All this blocks and runs in a worker thread; :class:`JoinedFile` is its asynchronous side.
"""

from __future__ import annotations

import io
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple, Protocol, TypeAlias, cast

import anyio

from tricklecast.subscriber.media.opening import NotMedia, is_mpegts, open_segment
from tricklecast.subscriber.sinks import OneAtATime, Output, SinkFailed, check_path
from tricklecast.trickle.amounts import count
from tricklecast.trickle.errors import InvalidInput, Position, TrickleError
from tricklecast.trickle.media.containers import SNIFF_BYTES, Container, damaged_fragments, sniff
from tricklecast.trickle.media.demux import SampleGuard
from tricklecast.trickle.media.timeline import CLOCK_HZ, Timeline, ticks
from tricklecast.trickle.pyav import codec_family, copied, demuxed, file_errors, need_pyav, packet_errors, reason

if TYPE_CHECKING:
    from av import Packet
    from av.bitstream import BitStreamFilterContext
    from av.container import InputContainer, OutputContainer
    from av.stream import Stream

MIN_STEP: Final = CLOCK_HZ // 1000
"""Least distance between two packets of a stream: a tick of the coarsest container, Matroska."""

# One segment, taken apart.

_KINDS: Final = ("video", "audio", "subtitle")

_TICK: Final = Fraction(1, CLOCK_HZ)


class Slot(NamedTuple):
    """Which stream this is, from segment to segment: the ``number``-th of its kind."""

    kind: str
    number: int


class Track(NamedTuple):
    """A stream of a segment.

    Attributes:
        stream: a template for a muxer; it must not be used after its container was closed.
        shape: the properties that a decoder is set up for; a stream whose shape changes cannot go on in the same file.
            ``None``: the segment does not say, as it holds too little of that stream.
    """

    stream: Stream
    codec: str
    shape: tuple[object, ...] | None


_Packets: TypeAlias = "list[tuple[Slot, Packet[Stream]]]"


@dataclass(frozen=True, slots=True)
class DemuxedSegment:
    """A segment, read.

    Attributes:
        container: whose streams these are.
        packets: of these, in the order of their decoding times.
        follows: nothing was missed before it.
        damage: how many of them are damaged, by stream: bytes were lost or changed before they came here.
        missing: fragments of MP4 that are missing or cut off.
        number: how many segments came before it.
    """

    container: InputContainer
    tracks: dict[Slot, Track]
    packets: _Packets
    follows: bool
    damage: Counter[Slot]
    missing: int
    name: str
    number: int


def _tracks(container: InputContainer) -> dict[Slot, Track]:
    tracks: dict[Slot, Track] = {}
    numbers: Counter[str] = Counter()
    for stream in container.streams:
        context = stream.codec_context
        if context is not None and stream.type in _KINDS:
            slot = Slot(stream.type, numbers[stream.type])
            tracks[slot] = Track(stream, str(context.codec.canonical_name), _shape(stream, context))
            numbers[stream.type] += 1
    return tracks


def _shape(stream: Stream, context: Any) -> tuple[object, ...] | None:
    """The decoder's set-up. Parameters that come within the stream may change there, as decoders expect it."""
    size = (1, 1)
    if stream.type == "video":
        size = (context.width, context.height)
    elif stream.type == "audio":
        size = (context.sample_rate, context.channels)
    return (*size, None if is_mpegts(stream) else bytes(context.extradata or b"")) if all(size) else None


def _packets(container: InputContainer, tracks: Mapping[Slot, Track], *, whole: bool) -> _Packets:
    """The packets in order. Damaged ones are among them: most can be decoded, with a flaw at worst."""
    from av.error import FFmpegError

    slots = {track.stream.index: slot for slot, track in tracks.items()}
    packets: list[tuple[int, Slot, Packet[Stream]]] = []
    last: dict[Slot, int] = {}
    with suppress(FFmpegError):  # the end of the bytes may come as an error if the segment was cut
        for packet in demuxed(container, [track.stream for track in tracks.values()]):
            if packet.size:
                slot = slots[packet.stream_index]
                time = packet.pts if packet.dts is None else packet.dts
                last[slot] = last.get(slot, 0) if time is None else ticks(time, packet.time_base)
                packets.append((last[slot], slot, packet))
    if not whole:
        lasts = {slot: number for number, (_, slot, _) in enumerate(packets)}
        packets = [packets[number] for number in range(len(packets)) if number not in lasts.values()]
    return [(slot, packet) for _, slot, packet in sorted(packets, key=lambda packet: packet[0])]


# The file.

_COMMON: Final = {
    "flush_packets": "1",  # muxed packets are in the file at once
    "max_interleave_delta": "1",  # packets come in order; never wait for a stream that is silent
}

# Written as a fragmented file, which can be read wherever it breaks off. A fragment is a second at most: a kill costs
# no more. The streams' starts are kept apart by edit lists, which are written with the first fragment, in ticks of
# the movie's clock.
_MP4: Final = {
    **_COMMON,
    "movflags": "+delay_moov",
    "frag_duration": "1000000",
    "movie_timescale": "90000",
    "strict": "experimental",  # TrueHD in MP4, which libavformat can write by now
}

_HYBRID: Final = "+hybrid_fragmented+delay_moov"
"""The last write turns it into an ordinary file, whose index comes at its end."""

_HYBRID_SINCE: Final = (62, 12)
"""The libavformat of FFmpeg 8.1. That of 7.1 and 8.0 overwrites the file's beginning if both flags are set; there the
file stays a fragmented one."""

_MATROSKA: Final = {**_COMMON, "cluster_time_limit": "1000"}

_AT_ONCE: Final = {"cluster_time_limit": "0"}
"""A sink gets each packet as soon as the next one comes, not in clusters of a second. Of Matroska."""

_FILTERS: Final = {"aac": "aac_adtstoasc"}
"""Bitstream filters that turn packets with their own parameters into those of these files. Muxers know the others."""

MUXERS: Final[Mapping[str, str]] = {
    ".mp4": "mp4",
    ".m4v": "mp4",
    ".m4a": "mp4",
    ".mov": "mov",
    ".mkv": "matroska",
    ".mka": "matroska",
}
"""libavformat's names of the kinds of files, by the ending of the file's name."""

_SOUND_ONLY: Final = (".m4a", ".mka")

LIVE: Final = "a live stream"
"""The name of a file that goes to a sink, for people."""


def file_of(path: Path) -> str:
    """Name a kind of file, for people."""
    return f"a {path.suffix} file"


class File:
    """A file being written.

    Args:
        path: it is replaced.
        tracks: its streams; those that it cannot hold are left out.
        sink: is written to in place of the file, and need not be able to seek.
        parameters: of streams whose packets alone have them, for a sink, in whose head they could not be written later.

    Raises:
        NothingToWrite: it can hold none of them.
        OSError: it cannot be written.
    """

    def __init__(
        self,
        path: Path,
        tracks: Mapping[Slot, Track],
        sink: object = None,
        parameters: Mapping[Slot, bytes] | None = None,
    ) -> None:
        import av
        from av.bitstream import BitStreamFilterContext

        self.path: Final = path
        self.left_out: dict[Slot, str] = {}
        self._tracks = dict(tracks)
        self._streams: dict[Slot, Stream] = {}
        self._filters: dict[Slot, BitStreamFilterContext] = {}
        # The newest packet of each stream, until the next one says how long it is: a fragment of MP4 begins where the
        # last one ends, by the sum of the durations in it.
        self._held: dict[Slot, Packet[Stream]] = {}
        self._steps: dict[Slot, int] = {}  # from the decoding time of the packet before to that of the newest
        self._ends: dict[Slot, int] = {}  # when the last picture to be shown ends
        # How many packets of each stream the muxer was given: in all, until the file grew last, and until the time
        # before that. It gathers packets, and the file grows when it writes them. (Two packets may come out of
        # its queue at once, so that the one that made the file grow need not be the newest: hence the time before.)
        self._given: Counter[Slot] = Counter()
        self._grew_with: Counter[Slot] = Counter()
        self._on_disk: Counter[Slot] = Counter()
        self._size = -1
        muxer = MUXERS[path.suffix.lower()]
        options = dict(_MATROSKA if muxer == "matroska" else _MP4)
        if muxer != "matroska" and av.library_versions["libavformat"] >= _HYBRID_SINCE:
            options["movflags"] = _HYBRID
        self._is_file = sink is None
        whole = LIVE if sink is not None else file_of(path)
        if sink is not None:
            options |= _AT_ONCE
        # libavformat asks for types only: ``write`` is all that it needs of a sink.
        target = str(path) if sink is None else cast(Any, sink)
        self._muxer: OutputContainer = av.open(target, mode="w", format=muxer, container_options=options)
        for slot, track in tracks.items():
            # A muxer knows codecs by their decoders' names, too, where these differ.
            names = (track.codec, track.stream.codec_context.name)
            is_wanted = slot.kind == "audio" or path.suffix.lower() not in _SOUND_ONLY
            if not is_wanted or self._muxer.supported_codecs.isdisjoint(names):
                self.left_out[slot] = track.codec
                continue
            self._streams[slot] = copied(track.stream, self._muxer)
            if parameters and slot in parameters:
                self._streams[slot].codec_context.extradata = parameters[slot]
            if track.codec in _FILTERS and is_mpegts(track.stream):
                self._filters[slot] = BitStreamFilterContext(_FILTERS[track.codec], track.stream)
        if not self._streams:
            codecs = ", ".join(self.left_out.values())
            raise NothingToWrite(f"{whole} holds none of this channel's streams: {codecs or 'none'}")
        try:
            self._muxer.start_encoding()  # makes the file
        except packet_errors() as error:
            self._remove()
            codecs = ", ".join(track.codec for track in tracks.values())
            raise Undescribed(f"{whole} does not hold {codecs} ({reason(error)})") from error
        self._has_grown()  # by its head

    def fits(self, slot: Slot, track: Track, *, damaged: bool) -> bool:
        """Whether a later segment's stream can go on in this file. A damaged one may seem to have another shape."""
        if slot in self.left_out:
            return True
        mine = self._tracks.get(slot)
        if mine is None:
            return track.shape is None
        return codec_family(mine.codec) == codec_family(track.codec) and (damaged or track.shape in (None, mine.shape))

    def holds(self, slot: Slot) -> bool:
        """Whether it has such a stream."""
        return slot in self._streams

    def write(self, slot: Slot, packet: Packet[Stream], times: tuple[int, int]) -> None:
        """Add a packet of a stream that it holds.

        Args:
            packet: is changed.
            times: its presentation and decoding time in the file, in ticks of 90 kHz.

        Raises:
            OSError: the disk is full, ... (PyAV's ``FFmpegError`` included).
        """
        bitstream, duration = self._filters.get(slot), ticks(packet.duration or 0, packet.time_base)
        for filtered in [packet] if bitstream is None else bitstream.filter(packet):
            filtered.stream = self._streams[slot]
            filtered.time_base = _TICK
            (filtered.pts, filtered.dts), filtered.duration = times, duration
            if slot.kind == "subtitle":  # says itself how long it is shown
                self._mux(slot, filtered)
                continue
            before, self._held[slot] = self._held.get(slot), filtered
            if before is not None:
                self._steps[slot] = before.duration = times[1] - cast(int, before.dts)
                self._mux(slot, before)

    def _mux(self, slot: Slot, packet: Packet[Stream]) -> None:
        self._ends[slot] = max(self._ends.get(slot, 0), cast(int, packet.pts) + cast(int, packet.duration))
        self._given[slot] += 1
        self._muxer.mux_one(packet)
        self._written = True
        if self._has_grown():
            self._on_disk, self._grew_with = self._grew_with, self._given.copy()

    def _has_grown(self) -> bool:
        if not self._is_file:
            return False
        before = self._size
        with suppress(OSError):  # the user has moved it
            self._size = self.path.stat().st_size
        return self._size > before

    def taken(self) -> Counter[Slot]:
        """Count the packets of each stream that were written so far."""
        return self._given + Counter(self._held.keys())

    def has_on_disk(self, taken: Counter[Slot]) -> bool:
        """Whether all that :meth:`taken` counted can be read from the disk, also if nothing more can be written."""
        return taken <= self._on_disk

    def close(self) -> bool:
        """Turn it into an ordinary file.

        Returns:
            Whether there is one: nothing is left behind if nothing was written.

        Raises:
            OSError: the disk is full, ...
        """
        try:
            for slot, packet in self._held.items():
                # libavformat ends an MP4 track with the pictures of its last fragment. One that is shown after them,
                # but was decoded in the fragment before, would be cut off.
                end = self._ends.get(slot, 0) - cast(int, packet.pts)
                packet.duration = max(packet.duration or self._steps.get(slot, 0), end)
                self._mux(slot, packet)
        finally:
            self._held.clear()
            self._muxer.close()
        if not self._written:
            self._remove()
        return self._written

    def _remove(self) -> None:
        if self._is_file:
            self.path.unlink(missing_ok=True)


class NothingToWrite(TrickleError):
    """A file of that kind can hold none of the streams."""


class Undescribed(NothingToWrite):
    """The container does not take the streams as they are described; a description may be damaged."""


# Joining.

WAIT_SEGMENTS: Final = 3
"""A file names its streams at its beginning. If the first segments announce a stream without enough of it to know its
parameters (a sound that has not begun), the joiner waits for it in this many segments, and then leaves it out."""


class Joiner:
    """Joins segments of MPEG-TS or MP4.

    Fragmented MP4 whose later segments come without an init segment is read with the last one that was seen. Pictures
    that refer to others which were lost are left out, so that nothing in the file is broken. A loss of less than 10 s
    stays open on the time line.

    Args:
        path: the file; its ending says which kind it is to be (:data:`MUXERS`). Where the media changes, the next file
            gets a number: ``out-2.mp4``.
        say: gets lines, for people, about media that does not get into the file.
        hint: the last words of the error for a channel without media: what to do about it.

    Attributes:
        files: those that were made.
        left_out: how many segments are in no file, since they cannot be read.
        saved: how many of the segments, counted from the first one, are on disk as a whole.
    """

    def __init__(self, path: Path, say: Callable[[str], None], hint: str = "") -> None:
        self._path = path
        self._say = say
        self._hint = hint
        self._init = b""
        self._timeline = Timeline(begin=0, step=MIN_STEP)
        self._decodable: set[Slot] = set()
        self._file: File | None = None
        self._waiting: deque[DemuxedSegment] = deque()
        self._whole_before = False
        self._unreadable: NotMedia | None = None
        self._damaged_segments = self._damaged = self._refused = 0  # segments; packets that are kept, and that are not
        self._missing = 0  # fragments of MP4
        self._keyless = 0  # pictures that are left out, since they come before a keyframe
        self.files: list[Path] = []
        self.left_out = self.saved = 0
        self._added = 0
        self._has_failed = False
        # Of each segment behind the saved ones: the packets that the open file had taken when it had got the segment;
        # empty: it is in a file that is closed, or left out; None: it waits.
        self._taken: deque[Counter[Slot] | None] = deque()

    def add(self, data: BinaryIO, name: str, *, whole: bool = True, follows: bool = True) -> None:
        """Add a segment.

        Args:
            whole: it was not cut short; otherwise the last packet of each stream may be a part, and is left out.
            follows: it is the one after the last that was added: nothing was missed in between.

        Raises:
            SinkFailed: the file cannot be written.
            NotMedia: none of the first segments can be read, or has a stream that the file can hold.
        """
        self._added += 1
        self._taken.append(None)
        try:
            part = self._read(data, name, whole=whole, follows=follows and self._whole_before)
        except NotMedia as error:
            self._unusable(error, name)
            self._taken[-1] = Counter()
            return
        self._whole_before = whole
        self._waiting.append(part)
        try:
            self._write_waiting()
        except file_errors() as error:
            self._has_failed = True
            raise self._failed(error) from error
        self._note_saved()

    def _note_saved(self) -> None:
        while self._taken and (taken := self._taken[0]) is not None:
            if taken and not (self._file is not None and self._file.has_on_disk(taken)):
                return
            self._taken.popleft()
            self.saved += 1

    def close(self) -> None:
        """Finish the file.

        Raises:
            SinkFailed: it cannot be written.
            NotMedia: segments came, and none of them could be read.
        """
        try:
            self._write_waiting(last=True)
            self._end()
            if not self._has_failed:  # packets lost then are not in the file that could be finished now
                self._note_saved()
            self._say_damage()
        except file_errors() as error:
            raise self._failed(error) from error
        finally:
            self._drop()
        if not self.files and self._unreadable is not None:
            raise self._unreadable

    def _drop(self) -> None:
        """Free everything, after a failure, too."""
        while self._waiting:
            self._waiting.popleft().container.close()
        file, self._file = self._file, None
        if file is not None:
            with suppress(*file_errors()):
                file.close()

    def _read(self, data: BinaryIO, name: str, *, whole: bool, follows: bool) -> DemuxedSegment:
        from av.error import FFmpegError

        data.seek(0)
        kind = sniff(data.read(SNIFF_BYTES))
        data.seek(0)
        missing = 0
        try:
            if kind is Container.FMP4:
                content = data.read()
                missing = damaged_fragments(content) if whole else 0
                guard = SampleGuard(self._init)
                data = io.BytesIO(guard.feed(content))
                self._init = guard.init
            container = open_segment(data, kind)
            with ExitStack() as opened:
                opened.enter_context(container)
                tracks = _tracks(container)
                packets = _packets(container, tracks, whole=whole)
                damage = Counter(slot for slot, packet in packets if packet.is_corrupt)
                number = self._added - 1
                part = DemuxedSegment(container, tracks, packets, follows, damage, missing, name, number)
                opened.pop_all()
                return part
        except (FFmpegError, OSError, ValueError) as error:
            raise NotMedia(reason(error)) from error

    def _unusable(self, error: NotMedia, name: str) -> None:
        self._whole_before = False
        is_first = not (self.files or self._waiting)
        if is_first and self._unreadable is not None:
            raise self._unreadable
        self.left_out += 1
        self._say(f"{name} is left out: {error}")
        if is_first:
            self._unreadable = NotMedia(f"{name} is no media that can be put into {self.whole()}: {error}{self._hint}")

    def _write_waiting(self, *, last: bool = False) -> None:
        """Write the waiting packets, as soon as the streams of the file are known."""
        while self._waiting:
            part = self._waiting[0]
            used = {slot for slot, _ in part.packets}
            if self._file is not None and not all(
                self._file.fits(slot, part.tracks[slot], damaged=bool(part.damage[slot])) for slot in used
            ):
                self._end()
                self._say(self.changed())
            if self._file is None:
                self._open(last=last)
            if self._file is None:
                return
            self._waiting.popleft()
            with closing(part.container):
                self._write(self._file, part)
            self._taken[part.number - self.saved] = self._file.taken()

    def _write(self, file: File, part: DemuxedSegment) -> None:
        if not part.follows:
            self._decodable.clear()
        refused = 0
        for slot, packet in self._passed(part.packets):
            if file.holds(slot):
                times = self._timeline.stamp(slot, packet, packet.time_base)
                try:
                    file.write(slot, packet, times)
                except packet_errors():
                    refused += 1
        self._count_damage(part, refused)

    def _count_damage(self, part: DemuxedSegment, refused: int) -> None:
        """Tell people at the first damage; the file's end says how much there was."""
        damaged = part.damage.total()
        if not damaged and not refused and not part.missing:
            return
        if not self._damaged_segments:
            self._say(f"{part.name} is damaged: its readable part is kept")
        self._damaged_segments += 1
        self._damaged += damaged
        self._missing += part.missing
        self._refused += refused

    def _say_damage(self) -> None:
        if self._keyless:
            self._say(f"{count(self._keyless, 'picture')} left out: nothing can be decoded before the next keyframe")
        if self._damaged_segments:
            left_out = f"; {count(self._refused, 'unreadable packet')} left out" if self._refused else ""
            if self._missing:
                left_out += f"; {count(self._missing, 'fragment')} missing or cut off"
            self._say(
                f"{count(self._damaged_segments, 'segment')} damaged, with "
                f"{count(self._damaged, 'packet')} that may be flawed{left_out}"
            )

    def _passed(self, packets: _Packets) -> Iterator[tuple[Slot, Packet[Stream]]]:
        """The packets that can be decoded: after a loss, those of each video from its next keyframe on."""
        since: dict[Slot, int] = {}
        for slot, packet in packets:
            if slot.kind == "video":
                if slot not in self._decodable:
                    if not packet.is_keyframe:
                        self._keyless += 1
                        continue
                    self._decodable.add(slot)
                    since[slot] = packet.pts or 0
                # A picture that comes after a keyframe and is shown before it refers to pictures in front of it, too.
                if packet.pts is not None and packet.pts < since.get(slot, packet.pts):
                    continue
            yield slot, packet

    def _open(self, *, last: bool) -> None:
        may_wait = len(self._waiting) < WAIT_SEGMENTS and not last
        failure: NothingToWrite | None = None
        for newest in range(len(self._waiting)):  # a description that is damaged gives way to one that comes later
            tracks: dict[Slot, Track] = {}
            for part in (*islice(self._waiting, newest, None), *islice(self._waiting, newest)):
                for slot, track in part.tracks.items():
                    if slot not in tracks or tracks[slot].shape is None:
                        tracks[slot] = track
            complete = {slot: track for slot, track in tracks.items() if track.shape is not None}
            if len(complete) < max(1, len(tracks)) and may_wait:
                return
            try:
                self._file = self.made(complete)
                break
            except Undescribed as error:
                failure = error
            except NothingToWrite as error:
                raise NotMedia(str(error)) from None
        if self._file is None:
            if may_wait:
                return
            raise NotMedia(str(failure)) from None
        self.files.append(self._file.path)
        for slot in tracks.keys() - complete.keys():
            self._say(f"left out: a stream ({slot.kind}) that has not begun")
        for slot, codec in self._file.left_out.items():
            self._say(f"left out: a stream ({slot.kind}, {codec}) that {self.whole()} does not hold")

    def whole(self) -> str:
        """Name the thing that the segments become."""
        return file_of(self._path)

    def made(self, tracks: Mapping[Slot, Track]) -> File:
        """Make the next file."""
        return File(self._next_path(), tracks)

    def changed(self) -> str:
        """Say that another file follows, since this one cannot go on."""
        return f"the media changes: it goes on in {self._next_path()}"

    def _next_path(self) -> Path:
        number = len(self.files) + 1
        return self._path if number == 1 else self._path.with_stem(f"{self._path.stem}-{number}")

    def _end(self) -> None:
        file, self._file = self._file, None
        self._timeline = Timeline(begin=0, step=MIN_STEP)
        self._decodable.clear()
        if file is None:
            return
        try:
            if not file.close():
                self.files.remove(file.path)
        except packet_errors() as error:  # the media is damaged, not the disk: the next file may be fine
            self._say(f"{file.path} is not whole: libavformat cannot finish it ({reason(error)})")
        self._taken = deque(None if taken is None else Counter() for taken in self._taken)

    def _failed(self, error: Exception) -> SinkFailed:
        name = self.files[-1] if self.files else self._path
        return SinkFailed(f"cannot write to {name}: {reason(error)}")


def is_joined(path: Path) -> bool:
    """Whether a file of that name is put together by a :class:`Joiner`."""
    return path.suffix.lower() in MUXERS


# The asynchronous side.

SPOOL_BYTES: Final = 16 * 1024 * 1024
"""A segment larger than this is gathered on disk."""


class Part(Protocol):
    """The properties of a :class:`~tricklecast.subscriber.Segment` that a file depends on."""

    @property
    def seq(self) -> int: ...
    @property
    def gap(self) -> int: ...
    @property
    def restarted(self) -> bool: ...
    @property
    def complete(self) -> bool: ...
    @property
    def position(self) -> Position: ...


class JoinedFile(Output):
    """Puts the segments of a channel into one file that players can seek in.

    Args:
        path: the file; its ending says which kind it is to be.
        note: gets lines, for people, about media that does not get into it.
        hint: as for :class:`Joiner`.

    Raises:
        InvalidInput: that path cannot be written, or PyAV is not installed.
    """

    def __init__(self, path: Path, note: Callable[[str], None], hint: str = "") -> None:
        need_pyav()
        check_path(path)
        if path.exists() and not path.is_file():
            raise InvalidInput(
                f"cannot write a media file to {path}: it is no file; use --raw for the bytes as they come"
            )
        self._joiner = Joiner(path, note, hint)
        self._note = note
        self._spool: SpooledTemporaryFile[bytes] | None = None
        self._segment: Part | None = None
        self._threads = OneAtATime()
        self._positions: deque[Position] = deque()  # of the segments that the joiner got, from the first unsaved one
        self._saved = 0

    @property
    def unsaved(self) -> Position | None:
        """Where another run begins that gets the media this file lacks, if nothing more can be written."""
        return self._positions[0] if self._positions else None

    @property
    def left_out(self) -> int:
        """Segments that cannot be read."""
        return self._joiner.left_out

    @property
    def files(self) -> tuple[Path, ...]:
        """The files so far: the one that was named, and one more for each change of the media."""
        return tuple(self._joiner.files)

    async def begin(self, segment: Part) -> None:
        """A segment begins; one that was not ended counts as cut short."""
        await self._threads.run(self._add, False)
        self._spool, self._segment = SpooledTemporaryFile(SPOOL_BYTES), segment  # noqa: SIM115 - closed in _add

    async def write(self, data: bytes) -> None:
        """Gather a chunk of it: the media of a segment can be told only when all of it is there."""
        assert self._spool is not None
        self._spool.write(data)

    async def end(self) -> None:
        """The segment is over: add it to the file.

        Raises:
            SinkFailed: the file cannot be written.
            NotMedia: none of the first segments can be read.
        """
        segment = self._segment
        assert segment is not None
        await self._threads.run(self._add, segment.complete)

    async def __aexit__(self, *exc_info: object) -> None:
        """Finish the file, whatever ended the run; the segment under way is in it as far as it came."""
        try:
            with anyio.CancelScope(shield=True):
                await self._threads.run(self._finish)
        except TrickleError as failure:
            if not isinstance(exc_info[1], TrickleError):
                raise
            if str(failure) != str(exc_info[1]):  # a full disk is full again
                self._note(str(failure))  # the first error is the one that ended the run

    def _add(self, whole: bool) -> None:
        spool, segment = self._spool, self._segment
        self._spool = self._segment = None
        if spool is None or segment is None:
            return
        with spool:
            if spool.tell():
                follows = not segment.gap and not segment.restarted
                self._positions.append(segment.position)
                self._joiner.add(cast(BinaryIO, spool), f"segment {segment.seq}", whole=whole, follows=follows)
                self._forget_saved()

    def _forget_saved(self) -> None:
        while self._saved < self._joiner.saved:
            self._positions.popleft()
            self._saved += 1

    def _finish(self) -> None:
        try:
            self._add(whole=False)
        finally:
            self._joiner.close()
            self._forget_saved()
