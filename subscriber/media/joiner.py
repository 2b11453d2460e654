"""Segments of media joined into one file that players can seek in, without re-encoding.

Every segment is opened by itself (:class:`Reader`), so that a bad one harms no other; :class:`Timeline` moves its times
behind those before; :class:`File` is readable at any moment, and an ordinary, seekable file when it is closed in order.
All this blocks and runs in a worker thread; :class:`JoinedFile` is its asynchronous side.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import TYPE_CHECKING, BinaryIO, Final, Self, TypeAlias, cast

import anyio
from anyio import to_thread

from tricklecast.subscriber.segment import Segment
from tricklecast.subscriber.sinks import SinkFailed, check_path
from tricklecast.trickle.errors import InvalidInput, Position, TrickleError
from tricklecast.trickle.media.containers import SNIFF_BYTES, Container, init_segment, sniff

if TYPE_CHECKING:
    from av import Packet
    from av.bitstream import BitStreamFilterContext
    from av.container import InputContainer, OutputContainer
    from av.stream import Stream

# Time.

CLOCK_HZ: Final = 705_600_000
"""Ticks per second that every usual clock of media divides into without rest: 90 kHz, 44.1 and 48 kHz, 30000/1001
("flicks", from the film industry). So moving a time never rounds it."""

WRAP: Final = (1 << 33) * (CLOCK_HZ // 90_000)
"""Times in MPEG-TS have 33 bits (ISO/IEC 13818-1, 2.4.3.7): they begin again after 26.5 hours."""

MAX_PAUSE: Final = 30 * CLOCK_HZ
"""Longest silence that stays in the file. A missed segment leaves its time open; a clock that was set does not."""

MAX_OVERLAP: Final = CLOCK_HZ // 10
"""How far a segment may begin before the end of the last one, as rounded times and uneven audio frames do."""

MIN_STEP: Final = CLOCK_HZ // 1000
"""Least distance between two packets of a stream: a tick of the coarsest container, Matroska."""


@dataclass(frozen=True, slots=True)
class Times:
    """When a packet is decoded and shown, and for how long (0: not known), in ticks of :data:`CLOCK_HZ`.

    Attributes:
        stream: number of its stream; the stream whose times are to be trusted most has the lowest.
    """

    stream: int
    dts: int
    pts: int
    duration: int = 0


class Timeline:
    """Moves the times of segments so that they follow one another.

    All streams of a segment are moved alike, so that sound and picture stay together. The file begins at 0.
    """

    def __init__(self) -> None:
        self._shift: int | None = None
        self._last: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._shown: dict[int, int] = {}

    def place(self, packets: Sequence[Times], *, wraps: bool) -> list[Times]:
        """The times of a segment's packets in the file.

        Args:
            packets: at least one; each stream's in decoding order.
            wraps: times have 33 bits.
        """
        self._anchor(packets, wraps)
        return [self._stamp(packet) for packet in packets]

    def _anchor(self, packets: Sequence[Times], wraps: bool) -> None:
        starts: dict[int, int] = {}
        for packet in packets:
            starts.setdefault(packet.stream, packet.dts)
        if self._shift is None:
            self._shift = -min(starts.values())
            return
        common = sorted(starts.keys() & self._ends.keys())
        if not common:
            self._shift = max(self._ends.values()) - min(starts.values())
            return
        jump = starts[common[0]] + self._shift - self._ends[common[0]]
        if wraps:
            turns = round(jump / WRAP)
            self._shift -= turns * WRAP
            jump -= turns * WRAP
        if not -MAX_OVERLAP <= jump <= MAX_PAUSE:
            # Behind what is decoded and behind what is shown: a cut leaves pictures whose predecessors never came.
            shown = {stream: min(packet.pts for packet in packets if packet.stream == stream) for stream in common}
            self._shift = max(
                max(self._ends[stream] - starts[stream], self._shown[stream] - shown[stream]) for stream in common
            )

    def _stamp(self, packet: Times) -> Times:
        assert self._shift is not None
        dts, pts = packet.dts + self._shift, packet.pts + self._shift
        last = self._last.get(packet.stream)
        if last is not None:
            dts = max(dts, last + MIN_STEP)
        duration = packet.duration or (0 if last is None else dts - last)
        self._last[packet.stream] = dts
        self._ends[packet.stream] = dts + duration
        pts = max(pts, dts)
        self._shown[packet.stream] = max(self._shown.get(packet.stream, pts), pts + duration)
        return Times(packet.stream, dts, pts, packet.duration)


# One segment, taken apart.

_KINDS: Final = ("video", "audio", "subtitle")

Slot: TypeAlias = tuple[str, int]
"""Which stream this is, from segment to segment: its kind, and its number among those of that kind."""


class NotMedia(TrickleError):
    """A segment's bytes are no media that can be read."""


@dataclass(frozen=True, slots=True)
class Track:
    """A stream of a segment.

    Attributes:
        slot: which one it is. stream: a template for a muxer. codec: the codec's name.
        shape: what a decoder has to be set up for; a stream whose shape changes cannot go on in the same file.
            ``None``: the segment does not say, as it holds too little of that stream.
        in_band: the decoder's parameters come within the stream.
    """

    slot: Slot
    stream: Stream
    codec: str
    shape: tuple[object, ...] | None
    in_band: bool


@dataclass(frozen=True, slots=True)
class Part:
    """A segment, read.

    Attributes:
        container: whose streams these are; they must not be used after it was closed.
        tracks: its streams. packets: of these, in the order of their decoding times, with those times.
        wraps: times have 33 bits.
    """

    container: InputContainer
    tracks: dict[Slot, Track]
    packets: list[tuple[Slot, Packet[Stream], Times]]
    wraps: bool


class Reader:
    """Reads segments: MPEG-TS, MP4, and whatever else PyAV recognises by its first bytes.

    Fragmented MP4 whose later segments come without an init segment is read with the last one that was seen.
    """

    def __init__(self) -> None:
        self._init = b""

    def read(self, data: BinaryIO, *, whole: bool) -> Part:
        """Take a segment apart. Close its container when its packets are dealt with.

        Args:
            data: its bytes, from the beginning.
            whole: it was not cut short; otherwise the last packet of each stream may be a part, and is left out.

        Raises:
            NotMedia: it cannot be read.
        """
        import av

        data.seek(0)
        # Probing would need more of the first bytes than a short segment has.
        format_ = {Container.MPEGTS: "mpegts", Container.FMP4: "mp4"}.get(sniff(data.read(SNIFF_BYTES)))
        data.seek(0)
        if format_ == "mp4":
            data = self._with_init(data)
        try:
            with ExitStack() as opened:
                container = opened.enter_context(av.open(data, mode="r", format=format_))
                part = _part(container, whole=whole)
                opened.pop_all()
                return part
        except (av.error.FFmpegError, OSError, ValueError) as error:
            raise NotMedia(str(getattr(error, "strerror", None) or error)) from error

    def _with_init(self, data: BinaryIO) -> BinaryIO:
        content = data.read()
        data.seek(0)
        if init := init_segment(content):
            self._init = init
            return data
        return io.BytesIO(self._init + content) if self._init else data


def _part(container: InputContainer, *, whole: bool) -> Part:
    wraps = container.format.name == "mpegts"
    tracks = {track.slot: track for track in _tracks(container)}
    slots = {track.stream.index: track.slot for track in tracks.values()}
    packets: list[tuple[Slot, Packet[Stream], Times]] = []
    last: dict[int, int] = {}
    for packet in _packets(container):
        index = packet.stream_index
        if index in slots:
            times = _times(packet, _rank(slots[index]), last.get(index))
            last[index] = times.dts
            packets.append((slots[index], packet, times))
    if not whole:
        packets = _without_last(packets)
    return Part(container, tracks, sorted(packets, key=lambda packet: packet[2].dts), wraps)


def _packets(container: InputContainer) -> Iterator[Packet[Stream]]:
    """All packets with something in them; the end of the bytes may come as an error if the segment was cut."""
    from av.error import FFmpegError

    try:
        for packet in container.demux():
            if packet.size and not packet.is_corrupt:
                yield packet
    except FFmpegError:
        return


def _tracks(container: InputContainer) -> Iterator[Track]:
    numbers = dict.fromkeys(_KINDS, 0)
    for stream in container.streams:
        context = getattr(stream, "codec_context", None)
        if context is None or stream.type not in _KINDS:
            continue
        slot = (stream.type, numbers[stream.type])
        numbers[stream.type] += 1
        in_band = container.format.name == "mpegts"
        yield Track(slot, stream, str(context.codec.canonical_name), _shape(stream, context, in_band=in_band), in_band)


def _shape(stream: Stream, context: object, *, in_band: bool) -> tuple[object, ...] | None:
    """The decoder's set-up. Parameters that come within the stream may change there, as decoders expect it."""
    if stream.type == "video":
        size = (getattr(context, "width", 0), getattr(context, "height", 0))
    elif stream.type == "audio":
        size = (getattr(context, "sample_rate", 0), getattr(context, "channels", 0))
    else:
        size = (1, 1)
    extradata = None if in_band else bytes(getattr(context, "extradata", None) or b"")
    return (*size, extradata) if all(size) else None


def _rank(slot: Slot) -> int:
    """A number for a stream that is the same in every segment; the lowest are those of videos."""
    return _KINDS.index(slot[0]) << 16 | slot[1]


def _times(packet: Packet[Stream], rank: int, last: int | None) -> Times:
    base = packet.time_base or Fraction(1, CLOCK_HZ)
    guess = 0 if last is None else last + MIN_STEP
    dts = packet.pts if packet.dts is None else packet.dts
    ticks = guess if dts is None else _ticks(dts, base)
    pts = ticks if packet.pts is None else _ticks(packet.pts, base)
    return Times(rank, ticks, pts, _ticks(packet.duration or 0, base))


def _ticks(time: int, base: Fraction) -> int:
    return time * CLOCK_HZ * base.numerator // base.denominator


def _without_last(packets: list[tuple[Slot, Packet[Stream], Times]]) -> list[tuple[Slot, Packet[Stream], Times]]:
    lasts = {slot: number for number, (slot, _, _) in enumerate(packets)}
    return [packet for number, packet in enumerate(packets) if lasts[packet[0]] != number]


# The file.


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of file.

    Attributes:
        muxer: libavformat's name for it. kinds: the streams that it is for.
        options: of the muxer.
    """

    muxer: str
    kinds: tuple[str, ...]
    options: Mapping[str, str]


_COMMON: Final = {
    "flush_packets": "1",  # what is muxed is in the file
    "max_interleave_delta": "1",  # packets come in order; never wait for a stream that is silent
}

# Written as a fragmented file, which can be read wherever it breaks off. A fragment is a second at most: what a kill
# may cost. The streams' starts are kept apart by edit lists, which are written with the first fragment, in ticks of
# the movie's clock.
_MP4: Final = {
    **_COMMON,
    "movflags": "+delay_moov",
    "frag_duration": "1000000",
    "movie_timescale": "90000",
}

_HYBRID: Final = "+hybrid_fragmented+delay_moov"
"""The last write turns it into an ordinary file, whose index comes at its end."""

_HYBRID_SINCE: Final = (62, 12)
"""The libavformat of FFmpeg 8.1. That of 7.1 and 8.0 overwrites the file's beginning if both flags are set; there the
file stays a fragmented one."""

_MATROSKA: Final = {**_COMMON, "cluster_time_limit": "1000"}

_FILTERS: Final = {"aac": "aac_adtstoasc"}
"""What makes of packets that carry their own parameters the kind that these files hold. Muxers know the others."""

FORMATS: Final[Mapping[str, Format]] = {
    ".mp4": Format("mp4", ("video", "audio", "subtitle"), _MP4),
    ".m4v": Format("mp4", ("video", "audio", "subtitle"), _MP4),
    ".m4a": Format("mp4", ("audio",), _MP4),
    ".mov": Format("mov", ("video", "audio", "subtitle"), _MP4),
    ".mkv": Format("matroska", ("video", "audio", "subtitle"), _MATROSKA),
    ".mka": Format("matroska", ("audio",), _MATROSKA),
}
"""By the ending of the file's name."""


class File:
    """A file being written.

    Args:
        path: it is replaced.
        format_: what kind it is to be.
        tracks: its streams; those that it cannot hold are left out.

    Raises:
        NothingToWrite: it can hold none of them.
        OSError: it cannot be written.
    """

    def __init__(self, path: Path, format_: Format, tracks: Mapping[Slot, Track]) -> None:
        import av
        from av.bitstream import BitStreamFilterContext

        self.path: Final = path
        self.tracks: dict[Slot, Track] = {}
        self.left_out: dict[Slot, str] = {}
        self._streams: dict[Slot, Stream] = {}
        self._filters: dict[Slot, BitStreamFilterContext] = {}
        self._written = False
        carried = _carried(format_, tracks)
        if not carried:
            codecs = ", ".join(track.codec for track in tracks.values())
            raise NothingToWrite(f"a {path.suffix} file holds none of this channel's streams: {codecs or 'none'}")
        options = dict(format_.options)
        if "movflags" in options and av.library_versions["libavformat"] >= _HYBRID_SINCE:
            options["movflags"] = _HYBRID
        self._muxer: OutputContainer = av.open(str(path), mode="w", format=format_.muxer, container_options=options)
        for slot, track in tracks.items():
            if slot in carried:
                self.tracks[slot] = track
                self._streams[slot] = _like(self._muxer, track.stream)
                if track.in_band and (name := _FILTERS.get(track.codec)):
                    self._filters[slot] = BitStreamFilterContext(name, track.stream)
            else:
                self.left_out[slot] = track.codec

    def fits(self, slot: Slot, track: Track) -> bool:
        """Whether a later segment's stream can go on in this file."""
        if slot in self.left_out:
            return True
        mine = self.tracks.get(slot)
        if mine is None:
            return track.shape is None
        return mine.codec == track.codec and track.shape in (None, mine.shape)

    def write(self, slot: Slot, packet: Packet[Stream], times: Times) -> None:
        """Add a packet; one of a stream that was left out is passed over.

        Raises:
            OSError: the disk is full, ... (PyAV's ``FFmpegError`` included).
        """
        stream = self._streams.get(slot)
        if stream is None:
            return
        bitstream = self._filters.get(slot)
        for filtered in [packet] if bitstream is None else bitstream.filter(packet):
            filtered.stream = stream
            filtered.time_base = Fraction(1, CLOCK_HZ)
            filtered.pts, filtered.dts, filtered.duration = times.pts, times.dts, times.duration
            self._muxer.mux_one(filtered)
            self._written = True

    def close(self) -> bool:
        """Turn it into an ordinary file.

        Returns:
            Whether there is one: nothing is left behind if nothing was written.

        Raises:
            OSError: the disk is full, ...
        """
        self._muxer.close()
        if not self._written:
            self.path.unlink(missing_ok=True)
        return self._written


class NothingToWrite(TrickleError):
    """A file of that kind can hold none of the streams."""


def _carried(format_: Format, tracks: Mapping[Slot, Track]) -> set[Slot]:
    import av

    # A muxer knows its codecs before anything is written; by their decoders' names, too, where these differ.
    with av.open(io.BytesIO(), mode="w", format=format_.muxer) as muxer:
        codecs = muxer.supported_codecs
    return {
        slot
        for slot, track in tracks.items()
        if slot[0] in format_.kinds and not codecs.isdisjoint((track.codec, track.stream.codec_context.name))
    }


def _like(muxer: OutputContainer, stream: Stream) -> Stream:
    copy = muxer.add_stream_from_template(stream)
    if language := stream.metadata.get("language"):
        copy.metadata["language"] = language
    return copy


# Joining.

WAIT_SEGMENTS: Final = 3
"""A file says at its beginning what streams it has. One that the first segments announce without enough of it to know
its parameters (a sound that has not begun) is waited for so long, and then left out."""

_RAW: Final = " (--raw, or another ending, takes any bytes)"

_Packets: TypeAlias = "list[tuple[Slot, Packet[Stream], Times]]"


class Joiner:
    """Joins segments of media.

    Pictures that refer to others which were lost are left out, so that nothing in the file is broken; what was lost
    stays open on the time line for up to half a minute.

    Args:
        path: the file; its ending says what kind it is to be (:data:`FORMATS`). Where the
            media changes, the next file gets a number: ``out-2.mp4``.
        say: is told, for people, what does not get into the file.
    """

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self._path = path
        self._format = FORMATS[path.suffix.lower()]
        self._say = say
        self._reader = Reader()
        self._timeline = Timeline()
        self._gate = _Gate()
        self._file: File | None = None
        self._waiting: list[tuple[Part, bool]] = []
        self._whole_before = False
        self._unreadable: NotMedia | None = None
        self.files: list[Path] = []

    def add(self, data: BinaryIO, name: str, *, whole: bool = True, follows: bool = True) -> None:
        """Add a segment.

        Args:
            data: its bytes. name: what to call it.
            whole: it was not cut short.
            follows: it is the one after the last that was added: nothing was missed in between.

        Raises:
            SinkFailed: the file cannot be written.
            NotMedia: none of the first segments can be read, or has a stream that the file can hold.
        """
        follows = follows and self._whole_before
        try:
            part = self._reader.read(data, whole=whole)
        except NotMedia as error:
            self._unusable(error, name)
            return
        self._whole_before = whole
        self._waiting.append((part, follows))
        try:
            self._write_waiting()
        except OSError as error:
            raise self._failed(error) from error

    def close(self) -> None:
        """Finish the file.

        Raises:
            SinkFailed: it cannot be written.
            NotMedia: segments came, and none of them could be read.
        """
        try:
            self._write_waiting(last=True)
            self._end()
        except OSError as error:
            raise self._failed(error) from error
        finally:
            self._drop()
        if not self.files and self._unreadable is not None:
            raise self._unreadable

    def _drop(self) -> None:
        """Free everything, after a failure, too."""
        for part, _ in self._waiting:
            part.container.close()
        self._waiting.clear()
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                file.close()

    def _unusable(self, error: NotMedia, name: str) -> None:
        self._whole_before = False
        if self.files or self._waiting:
            self._say(f"{name} is left out: {error}")
            return
        if self._unreadable is None:
            self._unreadable = NotMedia(
                f"{name} is no media that can be put into a {self._path.suffix} file: {error}{_RAW}"
            )
            return
        raise self._unreadable

    def _write_waiting(self, *, last: bool = False) -> None:
        """Write what is there, as soon as it is known what the file has to hold."""
        while self._waiting:
            part, follows = self._waiting[0]
            if self._file is not None and not _fits(self._file, part):
                self._end()
                self._say(f"the media changes: it goes on in {self._next_path()}")
            if self._file is None:
                self._open(last=last)
            if self._file is None:
                return
            self._waiting.pop(0)
            with closing(part.container):
                self._write(self._file, part, follows=follows)

    def _write(self, file: File, part: Part, *, follows: bool) -> None:
        if not follows:
            self._gate.close()
        packets = [packet for packet in self._gate.passed(part.packets) if packet[0] in file.tracks]
        if packets:
            placed = self._timeline.place([times for _, _, times in packets], wraps=part.wraps)
            for (slot, packet, _), times in zip(packets, placed, strict=True):
                file.write(slot, packet, times)

    def _open(self, *, last: bool) -> None:
        tracks: dict[Slot, Track] = {}
        for part, _ in self._waiting:
            for slot, track in part.tracks.items():
                known = tracks.get(slot)
                if known is None or known.shape is None:
                    tracks[slot] = track
        complete = {slot: track for slot, track in tracks.items() if track.shape is not None}
        if len(complete) < max(1, len(tracks)) and len(self._waiting) < WAIT_SEGMENTS and not last:
            return
        try:
            self._file = File(self._next_path(), self._format, complete)
        except NothingToWrite as error:
            raise NotMedia(str(error)) from None
        self.files.append(self._file.path)
        for slot in tracks.keys() - complete.keys():
            self._say(f"left out: a stream ({slot[0]}) that has not begun")
        for (kind, _), codec in self._file.left_out.items():
            self._say(f"left out: a stream ({kind}, {codec}) that a {self._path.suffix} file does not hold")

    def _next_path(self) -> Path:
        number = len(self.files) + 1
        return self._path if number == 1 else self._path.with_stem(f"{self._path.stem}-{number}")

    def _end(self) -> None:
        file, self._file = self._file, None
        self._timeline = Timeline()
        self._gate.close()
        if file is not None and not file.close():
            self.files.remove(file.path)

    def _failed(self, error: OSError) -> SinkFailed:
        name = self.files[-1] if self.files else self._path
        return SinkFailed(f"cannot write to {name}: {error.strerror or error}")


def is_joined(path: Path) -> bool:
    """Whether a file of that name is put together by a :class:`Joiner`."""
    return path.suffix.lower() in FORMATS


def _fits(file: File, part: Part) -> bool:
    used = {slot for slot, _, _ in part.packets}
    return all(file.fits(slot, part.tracks[slot]) for slot in used)


class _Gate:
    """Lets pass what can be decoded: after a loss, each video from its next keyframe on."""

    def __init__(self) -> None:
        self._open: set[Slot] = set()

    def close(self) -> None:
        """Something was lost."""
        self._open.clear()

    def passed(self, packets: _Packets) -> Iterator[tuple[Slot, Packet[Stream], Times]]:
        """Those of a segment's packets that pass."""
        since: dict[Slot, int] = {}
        for slot, packet, times in packets:
            if slot[0] == "video":
                if slot not in self._open:
                    if not packet.is_keyframe:
                        continue
                    self._open.add(slot)
                    since[slot] = times.pts
                # A picture that comes after a keyframe and is shown before it refers to what came before, too.
                if times.pts < since.get(slot, times.pts):
                    continue
            yield slot, packet, times


# The asynchronous side.

SPOOL_BYTES: Final = 16 * 1024 * 1024
"""A segment larger than this is gathered on disk."""


class JoinedFile:
    """Puts the segments of a channel into one file that players can seek in. An async context manager.

    Args:
        path: the file; its ending says what kind it is to be.
        note: is told, for people, what does not get into it.

    Raises:
        InvalidInput: that path cannot be written.
        TrickleError: PyAV is not installed.
    """

    position: Position | None = None
    file: str | None = None

    def __init__(self, path: Path, note: Callable[[str], None]) -> None:
        try:
            import av  # noqa: F401
        except ImportError as error:
            raise TrickleError('writing media files needs PyAV: pip install "tricklecast[media]"') from error
        check_path(path)
        if path.exists() and not path.is_file():
            raise InvalidInput(
                f"cannot write a media file to {path}: it is no file; use --raw for the bytes as they come"
            )
        self._joiner = Joiner(path, note)
        self._note = note
        self._spool: SpooledTemporaryFile[bytes] | None = None
        self._segment: Segment | None = None

    async def begin(self, segment: Segment) -> None:
        """A segment begins; one that was not ended counts as cut short."""
        await to_thread.run_sync(self._add, False)
        self._spool, self._segment = SpooledTemporaryFile(SPOOL_BYTES), segment  # noqa: SIM115 - closed in _add

    async def write(self, data: bytes) -> None:
        """Gather a chunk of it: what a segment holds can be told only when all of it is there."""
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
        await to_thread.run_sync(self._add, segment.truncated is None and segment.broken is None)

    async def ended(self, gap: int) -> None:
        """The channel is over."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Finish the file, whatever ended the run; the segment under way is in it as far as it came."""
        try:
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(self._finish)
        except TrickleError as failure:
            if not isinstance(exc_info[1], TrickleError):
                raise
            if str(failure) != str(exc_info[1]):  # a full disk is full again
                self._note(str(failure))  # what came first is what ended the run

    def _add(self, whole: bool) -> None:
        spool, segment = self._spool, self._segment
        self._spool = self._segment = None
        if spool is None or segment is None:
            return
        with spool:
            if spool.tell():
                follows = not segment.gap and not segment.restarted
                self._joiner.add(cast(BinaryIO, spool), f"segment {segment.seq}", whole=whole, follows=follows)

    def _finish(self) -> None:
        try:
            self._add(whole=False)
        finally:
            self._joiner.close()
