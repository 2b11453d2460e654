"""Decodes the segments of a channel, each while its bytes come: the part of ``frames()`` that blocks.

libavformat pulls its bytes: it blocks until they come. So it runs in a worker thread, and :class:`ChunkReader` is a
file there, whose bytes the event loop fetches. :class:`Decoding` goes on from segment to segment with the same
decoders, and begins anew where something is missing.

A decoder holds pictures back: for B-frames, and with several threads. They come when packets of a later segment are
decoded, or at a flush, and a later segment may be that of another encoder with another clock. So the segment of each
packet is kept under the packet's timestamp until the decoder gives its picture (:class:`Origin`).

Packets that cannot be decoded are counted. Bytes from the channel raise nothing but :exc:`NotMedia`: PyAV and its
decoders raise errors of many kinds for damaged media, and each of them means that the segment cannot be read.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, cast

import anyio
from anyio import from_thread

from tricklecast.subscriber.events import LOGGER
from tricklecast.subscriber.media.frame import Arrays, Clock, Frame
from tricklecast.subscriber.media.opening import NotMedia, is_key_picture, is_mpegts, open_segment
from tricklecast.subscriber.segment import Segment
from tricklecast.trickle.amounts import count
from tricklecast.trickle.client.reports import Event
from tricklecast.trickle.errors import NoHardware, TrickleError
from tricklecast.trickle.media.clock import ProducerTime, read_time
from tricklecast.trickle.media.containers import PACKET_BYTES, SNIFF_BYTES, Container, sniff
from tricklecast.trickle.media.demux import SampleGuard, UnsafeMedia
from tricklecast.trickle.media.timeline import CLOCK_HZ, Ratio
from tricklecast.trickle.pyav import copied, demuxed, new_decoder

if TYPE_CHECKING:
    from av import CodecContext, Packet
    from av.stream import Stream

HEAD_BYTES: Final = 256 * 1024
"""First bytes of a segment that are kept: they hold the producer's time, and the parameters of sound."""

PIECE_BYTES: Final = 200 * 1024
"""libavformat's longest packet of MPEG-TS (``MAX_PES_PAYLOAD``). One that goes on lacks less than a TS packet of it."""

PIECES: Final = 80
"""The most pieces of a picture: 16 MiB."""

HELD: Final = 256
"""The most packets of a kind that may be in a decoder: 16 pictures for B-frames and 64 threads, in two fields each."""

_WRAP_S: Final = Fraction(1 << 33, CLOCK_HZ)
"""After this many seconds the timestamps of MPEG-TS begin anew."""

# Packets come as they are, without waiting for the next one. Each PES packet of live encoders is one frame.
_OPTIONS: Final = {
    Container.MPEGTS: {"fflags": "+noparse+nofillin", "probesize": "32", "analyzeduration": "1"},
    Container.FMP4: {"probesize": "32", "analyzeduration": "1"},
}
# libavformat finds out the length of packets by 2 kB of them, which a small first picture does not have.
_NULL_PACKETS: Final = (b"\x47\x1f\xff\x10" + bytes(PACKET_BYTES - 4)) * 16


class SoftwareDecoding(Event):
    """``hwaccel="auto"`` found no device, so that pictures are decoded by the processor.

    Attributes:
        error: why no device decodes them.
    """

    error: NoHardware

    def __str__(self) -> str:
        return f"pictures are decoded without a device: {self.error.why}"


class PicturesDropped(Event):
    """Pictures were dropped (``when_full="drop"``), because the program was too slow for them.

    Attributes:
        count: in all, since the start.
    """

    count: int

    def __str__(self) -> str:
        return f"the program is too slow: {count(self.count, 'picture')} dropped so far"


@dataclass(slots=True)
class FrameStatistics:
    """Counters of a reader of frames.

    Attributes:
        frames: frames that were decoded.
        dropped: pictures of them that the program was too slow for.
        segments: segments that were read.
        resets: how often decoders began anew, because something was lost or the channel restarted.
        damaged: packets that could not be decoded.
        unreadable: segments that could not be read, or not to their end.
        incomplete: segments of which a part came, because their publisher or the connection broke off.
        missed: segments that did not come: skipped by their publisher, or gone from the server's window before they
            were read, those before the channel's end included.
    """

    frames: int = 0
    dropped: int = 0
    segments: int = 0
    resets: int = 0
    damaged: int = 0
    unreadable: int = 0
    incomplete: int = 0
    missed: int = 0


@dataclass(slots=True)
class Origin:
    """The segment that frames come from.

    Attributes:
        seq: its number.
        anchor: a time of the stream, in seconds, and the producer's time there, in microseconds; ``None``: not known.
            That of the segment before stands until the segment's own is read.
    """

    seq: int
    anchor: tuple[Fraction, int] | None = None


class ChunkReader:
    """A segment as a file that blocks, for libavformat in a worker thread.

    Attributes:
        head: its first bytes, at most :data:`HEAD_BYTES` and one chunk.
        failure: why it ended early.
    """

    def __init__(self, segment: Segment) -> None:
        self.head = bytearray()
        self.failure: BaseException | None = None
        self._is_stopped = False
        self._scope: anyio.CancelScope | None = None
        self._segment = segment
        self._guard: SampleGuard | None = None
        self._rest = b""
        self._at = 0  # number of bytes of the rest that were read

    async def begin(self) -> None:
        """Wait for the first bytes, by which a container is known, or the end; no thread waits with it."""
        while len(self.head) < SNIFF_BYTES and (data := await self._chunk()):
            self.head += data
        self._rest = bytes(self.head)

    def prepend(self, data: bytes) -> None:
        """Put bytes in front."""
        self._rest = data + self._rest

    def guard(self, guard: SampleGuard) -> None:
        """The segment is MP4: libavformat gets only bytes that it can read without harm."""
        self._guard = guard
        self._rest = self._guarded(self._rest)

    def read(self, size: int) -> bytes:
        """At most ``size`` bytes; none at the end."""
        if self._at == len(self._rest):
            self._rest, self._at = self._receive(), 0
        data = self._rest[self._at : self._at + size]
        self._at += len(data)
        return data

    def stop(self) -> None:
        """End the file here, also while the worker thread waits for bytes; called in the event loop."""
        self._is_stopped = True
        if self._scope is not None:
            self._scope.cancel()

    async def _chunk(self) -> bytes:
        with anyio.CancelScope() as self._scope:
            return b"" if self._is_stopped else await self._segment.read_some()
        return b""

    def _receive(self) -> bytes:
        """The next bytes that libavformat may have; the guard may keep any number of chunks back."""
        while self.failure is None:
            try:
                data = from_thread.run(self._chunk)
            except BaseException as error:  # also a cancellation: libavformat would print it and go on
                self.failure = error
                break
            if not data:
                break
            if len(self.head) < HEAD_BYTES:
                self.head += data
            if passed := self._guarded(data):
                return passed
        return b""

    def _guarded(self, data: bytes) -> bytes:
        try:
            return data if self._guard is None else self._guard.feed(data)
        except UnsafeMedia as error:
            self.failure = NotMedia(f"segment {self._segment.seq} cannot be read: {error}")
            return b""


class Decoding:
    """Decodes segment after segment; blocks."""

    def __init__(
        self,
        kinds: set[str],
        passes: set[str],
        arrays: Arrays | None = None,
        *,
        threads: int | None = None,
        hwaccel: str | None = None,
        report: Callable[[SoftwareDecoding], None] | None = None,
    ) -> None:
        self._kinds = kinds
        self._passes = passes
        self.found: set[str] = set()
        self._arrays = arrays
        self._clock = Clock()
        self._threads = threads
        self._hwaccel = hwaccel
        self._report = report
        self.counts = FrameStatistics()
        self._decoders: dict[str, CodecContext] = {}
        self._templates: dict[str, Stream] = {}
        self._set_up: dict[str, tuple[object, ...]] = {}
        self._ends: dict[str, Fraction] = {}
        self._bases: dict[str, Ratio] = {}
        self._origin = Origin(0)  # of the packets that are being read
        self._held: dict[str, deque[tuple[int, Origin]]] = {}  # of the packets in a decoder, with their timestamps
        self._init = b""  # the last init segment of MP4
        self._gap = 0
        self._restarted = self._has_told = False

    def missed(self, segments: int) -> None:
        """Whole segments are missing here."""
        self._gap += segments

    def begin_block(self) -> None:
        """Let the next picture begin the memory of a batch. Called in the event loop."""
        if self._arrays is not None:
            self._arrays.begin_block()

    def lost(self, *, restarted: bool = False) -> None:
        """Something is missing here, or the channel restarted: decoders begin anew. :meth:`flush` them before."""
        self._restarted |= restarted
        if restarted:
            self._init = b""
        if self._decoders:
            self.counts.resets += 1
        self._decoders, self._set_up, self._ends, self._held = {}, {}, {}, {}
        self._origin = Origin(self._origin.seq)
        self._clock.begin_anew(restarted=restarted)

    def flush(self) -> Iterator[Frame]:
        """The frames that the decoders hold back.

        Raises:
            NotMedia: they cannot be had.
        """
        with _decoding(self._origin.seq):
            for kind, decoder in self._decoders.items():
                yield from self._decoded(kind, decoder, None)

    def frames(self, segment: Segment, reader: ChunkReader) -> Iterator[Frame]:
        """The frames of a segment, as its bytes come.

        Raises:
            NotMedia: it is neither MPEG-TS nor MP4, or cannot be decoded.
        """
        if segment.gap or segment.restarted:
            yield from self.flush()
            self.lost(restarted=segment.restarted)
        self._gap += segment.gap
        head = bytes(reader.head)
        if not head:
            return
        kind, guard = sniff(head), SampleGuard(self._init)
        if kind is Container.MPEGTS:
            reader.prepend(_NULL_PACKETS)
        elif kind is Container.FMP4:
            reader.guard(guard)
        with _decoding(segment.seq):
            try:
                container = open_segment(reader, kind, _options(kind, head))
            except NotMedia as error:
                if reader.failure is not None:
                    return  # the caller raises that
                raise NotMedia(f"segment {segment.seq} cannot be read: {error}") from error
            self._init = guard.init
            self._origin = Origin(segment.seq, self._origin.anchor)
            with container:
                yield from self._demuxed(container, reader)

    def _demuxed(self, container: Any, reader: ChunkReader) -> Iterator[Frame]:
        from av.error import FFmpegError

        streams = {}
        for stream in container.streams:
            is_known = stream.codec_context is not None
            if is_known and stream.type in self._kinds and stream.type not in streams:
                streams[stream.type] = stream
        if not streams:
            self._pass_over(container, reader)
            return
        self.found = set(streams)
        lead = streams.get("video", streams.get("audio"))
        is_anchored = False
        packets = _in_one_piece(demuxed(container, list(streams.values())))
        while True:
            try:
                packet = next(packets, None)
            except FFmpegError:  # the segment was cut off in the middle, or is damaged there
                self.counts.damaged += 1
                return
            if packet is None:
                return
            if not packet.size:
                continue
            if packet.is_corrupt:
                self.counts.damaged += 1
                continue
            if not is_anchored and packet.pts is not None:
                at, told = packet.pts * packet.time_base, read_time(bytes(reader.head))
                is_anchored = self._anchored(packet.stream, at, told, packet.stream is lead)
            yield from self._packet(packet, packet.stream, reader)

    def _anchored(self, stream: Stream, at: Fraction, told: ProducerTime | None, is_lead: bool) -> bool:
        """Tie the time line to the producer's time of a segment; returns whether it is tied.

        The time is that of one frame. It may be a picture, where this reader has the sound alone, or has it first: then
        the bytes tell the frame's place. Where they do not, the reader's own first packet stands for it.

        Args:
            stream: that of a packet.
            at: the packet's presentation time, in seconds.
        """
        if told is not None and told.pts is not None and stream.id != told.stream:
            base = next((one.time_base for one in stream.container.streams if one.id == told.stream), None)
            if base is not None:
                shown = told.pts * base
                wraps = round((at - shown) / _WRAP_S)  # libavformat counts on where the counter of MPEG-TS wraps
                self._origin.anchor = shown + wraps * _WRAP_S, told.unix_us
                return True
        if is_lead or (told is not None and stream.id == told.stream):
            self._origin.anchor = None if told is None else (at, told.unix_us)
            return True
        return False

    def _pass_over(self, container: Any, reader: ChunkReader) -> None:
        """Read a segment to its end without a frame: it has only a kind that was not asked for. Log the first one.

        Raises:
            NotMedia: it has a stream of a wanted kind, of an unknown codec; or streams, and neither pictures nor sound.
        """
        kinds, wanted = {stream.type for stream in container.streams}, " or ".join(sorted(self._kinds))
        if kinds and (kinds & self._kinds or not kinds & {"video", "audio"}):
            raise NotMedia(f"segment {self._origin.seq} cannot be decoded: it has no {wanted} of a known codec")
        if not self._has_told:
            self._has_told = True
            LOGGER.warning("segment %d has no %s: no frame comes of it, or of others like it", self._origin.seq, wanted)
        while reader.read(HEAD_BYTES):
            pass

    def _packet(self, packet: Packet[Stream], stream: Stream, reader: ChunkReader) -> Iterator[Frame]:
        kind, context = stream.type, stream.codec_context
        is_in_band = is_mpegts(stream)
        set_up = (context.codec.canonical_name, None if is_in_band else context.extradata)
        if self._set_up.get(kind) != set_up:
            if kind in self._decoders:
                yield from self._decoded(kind, self._decoders[kind], None)
            self._set_up[kind] = set_up
            if kind in self._passes:
                self._templates[kind] = _template(stream, bytes(reader.head) if is_in_band else b"")
            else:
                self._decoders[kind] = self._decoder(kind, stream)
        if kind in self._passes:
            if packet.pts is None:
                self.counts.damaged += 1
                return
            # libavformat's parsers would know it, and hold each packet until the next one comes.
            if is_in_band and not packet.is_keyframe:
                packet.is_keyframe = kind == "audio" or is_key_picture(context.codec.canonical_name, bytes(packet))
            packet.stream = self._templates[kind]
            order = packet.pts if packet.dts is None else packet.dts
            yield self._made(kind, packet, self._origin, packet.pts * packet.time_base, order * packet.time_base)
        else:
            yield from self._decoded(kind, self._decoders[kind], packet)

    def _decoder(self, kind: str, stream: Stream) -> CodecContext:
        if kind == "audio":
            return new_decoder(stream)
        try:
            return new_decoder(stream, hwaccel=self._hwaccel, threads=self._threads)
        except NoHardware as error:
            if self._hwaccel != "auto":
                raise
            if self._report is not None:
                self._report(SoftwareDecoding(error))
        self._hwaccel = None  # no search again at the next decoder
        return new_decoder(stream, threads=self._threads)

    def _decoded(self, kind: str, decoder: CodecContext, packet: Packet[Stream] | None) -> Iterator[Frame]:
        from av.error import FFmpegError

        held = self._held.setdefault(kind, deque(maxlen=HELD))  # those that gave no picture fall out
        if packet is not None:
            self._bases[kind] = packet.time_base
            if packet.pts is not None:
                held.append((packet.pts, self._origin))
        try:
            decoded: list[Any] = cast(Any, decoder).decode(packet)
        except FFmpegError:
            self.counts.damaged += 1
            return
        for frame in decoded:
            frame.time_base = frame.time_base or self._bases[kind]  # frames that were held back have none
            if frame.pts is None and kind not in self._ends:
                self.counts.damaged += 1
                continue
            origin = self._taken(held, frame.pts)
            if frame.pts is None:  # the second frame of a packet
                frame.pts = round(self._ends[kind] / frame.time_base)
            begin = frame.pts * frame.time_base
            self._ends[kind] = begin + (Fraction(frame.samples, frame.sample_rate) if kind == "audio" else 0)
            self.counts.frames += 1
            yield self._made(kind, frame, origin, begin)

    def _taken(self, held: deque[tuple[int, Origin]], pts: int | None) -> Origin:
        """Take out the oldest packet with this timestamp: another encoder's first packets may have the same ones."""
        for at, (own, origin) in enumerate(held):
            if own == pts:
                del held[at]
                return origin
        return self._origin

    def _made(self, kind: str, data: Any, origin: Origin, begin: Fraction, order: Fraction | None = None) -> Frame:
        captured_at = None
        if origin.anchor is not None:
            captured_at = origin.anchor[1] / 1e6 + float(begin - origin.anchor[0])
        array = self._arrays.of(data) if self._arrays is not None and kind == "video" else None
        time_s = self._clock.time_s(kind, data, begin, order)
        gap, self._gap = self._gap, 0
        restarted, self._restarted = self._restarted, False
        return Frame(cast(Any, kind), data, array, captured_at, origin.seq, time_s, gap, restarted)


@contextmanager
def _decoding(seq: int) -> Iterator[None]:
    """Turn all that PyAV and numpy raise for damaged media into one error."""
    try:
        yield
    except TrickleError:
        raise
    except Exception as error:
        raise NotMedia(f"segment {seq} cannot be decoded: {str(error) or type(error).__name__}") from error


def _in_one_piece(packets: Iterator[Packet[Stream]]) -> Iterator[Packet[Stream]]:
    """Packets, each of which is a whole picture or piece of sound.

    libavformat hands a long PES packet on in pieces, of which only the first has a time. A shorter piece is the last
    one, so that it need not be held until the next picture.
    """
    held: dict[int, list[Packet[Stream]]] = {}
    for packet in packets:
        pieces = held.pop(packet.stream_index, [])
        if pieces and (packet.pts is not None or not packet.size):
            yield _whole(pieces)
            pieces = []
        pieces.append(packet)
        if PIECE_BYTES - PACKET_BYTES < packet.size <= PIECE_BYTES and len(pieces) < PIECES:
            held[packet.stream_index] = pieces
        else:
            yield _whole(pieces)
    yield from map(_whole, held.values())


def _whole(pieces: list[Packet[Stream]]) -> Packet[Stream]:
    from av import Packet

    first = pieces[0]
    if len(pieces) == 1:
        return first
    whole: Packet[Stream] = Packet(b"".join(map(bytes, pieces)))
    whole.stream, whole.time_base, whole.pts, whole.dts = first.stream, first.time_base, first.pts, first.dts
    whole.is_keyframe = first.is_keyframe
    return whole


def _options(kind: Container, head: bytes) -> dict[str, str]:
    options = dict(_OPTIONS.get(kind, {}))
    if b"Opus" in head and kind is Container.MPEGTS:  # only libavformat's parser finds the packets in its framing
        options["fflags"] = "+nofillin"
    return options


def _template(stream: Stream, head: bytes) -> Stream:
    """A copy of a stream that outlives its container.

    Args:
        head: of a segment in MPEG-TS, whose streams are probed: only their packets hold their parameters.
    """
    if not head:
        return copied(stream)
    with open_segment(io.BytesIO(head), Container.MPEGTS) as probed:
        return copied(next(one for one in probed.streams if one.type == stream.type))
