"""One segment taken apart into its packets; each segment is opened by itself, so that a bad one harms no other."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, BinaryIO, Final, TypeAlias

from tricklecast.subscriber.remux.timeline import CLOCK_HZ, MIN_STEP, Times
from tricklecast.trickle.errors import TrickleError

if TYPE_CHECKING:
    from av import Packet
    from av.container import InputContainer
    from av.stream import Stream

_KINDS: Final = ("video", "audio", "subtitle")
_BOXES: Final = (b"ftyp", b"styp", b"moov", b"moof", b"sidx", b"emsg", b"prft", b"free", b"mdat")
_SYNC: Final = 0x47
_PACKET_BYTES: Final = 188

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

        format_ = _format_of(data)
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
        init = _init_of(data)
        if init:
            self._init = init
            return data
        data.seek(0)
        return io.BytesIO(self._init + data.read()) if self._init else data


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


def _format_of(data: BinaryIO) -> str | None:
    """What it is by its first bytes. Probing would need more of them than a short segment has."""
    data.seek(0)
    head = data.read(_PACKET_BYTES + 1)
    data.seek(0)
    if head[:1] == bytes([_SYNC]) and head[_PACKET_BYTES:] in (b"", bytes([_SYNC])):
        return "mpegts"
    return "mp4" if head[4:8] in _BOXES else None


def _init_of(data: BinaryIO) -> bytes:
    """The boxes up to ``moov``, if they come before any media; else nothing. The place in ``data`` is its start."""
    at, found = 0, b""
    while True:
        data.seek(at)
        head = data.read(8)
        size, name = int.from_bytes(head[:4], "big"), head[4:8]
        if len(head) < 8 or size < 8 or name in (b"moof", b"mdat"):
            break
        at += size
        if name == b"moov":
            data.seek(0)
            found = data.read(at)
            break
    data.seek(0)
    return found if len(found) == at else b""
