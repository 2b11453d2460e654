"""Encoding for live media: H.264, and AAC or Opus.

A frame that goes in comes out at once, keyframes stand at fixed times, and every group of pictures is closed. Times
stay as they are: frame rates may vary, and sound keeps its distance to the picture. Where time jumps back by more than
:data:`BACK_S`, as in a clip that is played again, or sound jumps forward by more than :data:`JUMP_S`, the encoder
begins anew and passes the jump on. A frame that is nearer behind the one before it, repeated or out of order, is left
out and counted.

Each encoder has a stream that serves muxers as a template. Parameter sets are in its extradata, as MP4 needs them.
"""

from __future__ import annotations

import io
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast, get_args

from tricklecast.publisher.media.source import MediaSource
from tricklecast.publisher.media.texts import is_text
from tricklecast.trickle.amounts import count
from tricklecast.trickle.errors import InvalidInput
from tricklecast.trickle.media.containers import find_box
from tricklecast.trickle.media.ladder import Rung
from tricklecast.trickle.media.timeline import CLOCK_HZ, MAX_BACK, Ratio, fraction
from tricklecast.trickle.pyav import copied, is_attached, need_pyav, new_decoder

if TYPE_CHECKING:
    from av import CodecContext, Packet
    from av.audio.codeccontext import AudioCodecContext
    from av.audio.frame import AudioFrame
    from av.audio.stream import AudioStream
    from av.container import OutputContainer
    from av.filter import Graph
    from av.stream import Stream
    from av.video.codeccontext import VideoCodecContext
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

AudioCodec: TypeAlias = Literal["aac", "opus"]

VIDEO_ENCODER: Final = "libx264"
Preset: TypeAlias = Literal[
    "ultrafast", "superfast", "veryfast", "faster", "fast", "medium", "slow", "slower", "veryslow"
]
PRESETS: Final[tuple[Preset, ...]] = get_args(Preset)
"""x264's, from the fastest to the one that saves most; its ``placebo`` saves hardly more."""

AUDIO_ENCODERS: Final[Mapping[str, str]] = {"aac": "aac", "opus": "libopus"}

# AAC knows more, but every player knows these.
RATES: Final[Mapping[str, tuple[int, ...]]] = {
    "aac": (16_000, 22_050, 24_000, 32_000, 44_100, 48_000),
    "opus": (48_000,),
}

QUALITY: Final = 23
"""x264's constant rate factor where no bitrate is wanted: its default."""

MAX_BITRATE: Final = (1 << 31) - 1
"""In bits per second: the largest number that libavcodec's limits can hold."""

USUAL_RATE: Final = Fraction(25)
MAX_RATE: Final = 240
"""Containers that do not know their frame rate give that of their clock instead."""

JUMP_S: Final = 1
"""Sound further than this ahead of its expected time, in seconds, is at another place in time; nearer one follows a
loss."""

BACK_S: Final = Fraction(MAX_BACK, CLOCK_HZ)
"""A frame further than this behind, in seconds, is at another place in time; a nearer one is out of order. The time
line behind the encoder judges it alike."""

CLOCK: Final = Fraction(1, CLOCK_HZ)
"""The clock of encoded pictures: MPEG-TS's own, which most frame rates divide."""

_NO_LIMIT: Final = 1 << 30
"""x264 takes this distance of keyframes as "infinite"."""

_REMEMBERED: Final = 64
"""Capture times of this many frames are kept: more than decoders and encoders hold back."""

# Recordings lose frames and clocks differ: up to 2 % of stretching where sound is 10 ms off its timestamps; where it is
# 50 ms off, silence or a cut (a viewer notices sound that is 45 ms early, ITU-R BT.1359).
_CUT_S: Final = Fraction(5, 100)
_RESAMPLE: Final = f"async=1000:min_comp=0.01:min_hard_comp={float(_CUT_S)}"

# libavutil's AVColorRange and AVColorSpace; the last is swscale's number for BT.601.
_LIMITED_RANGE: Final = 1
_RGB: Final = 0
_UNKNOWN_COLORS: Final = 2
_BT601: Final = 6
_SWS_BT601: Final = 5


@dataclass(frozen=True, slots=True)
class Encoding:
    """How media is encoded.

    Attributes:
        video_bitrate: bits per second, kept over every second; ``None``: constant quality.
        gop_s: from keyframe to keyframe, in seconds.
        preset: x264's, from ``ultrafast`` to ``veryslow``.
        audio_codec: ``"aac"`` or ``"opus"``.
        audio_bitrate: of each audio stream, in bits per second.
        threads: how many encode one picture; 0: one per processor.
        rung: into whose size pictures are brought; ``None``: they keep theirs.

    Raises:
        InvalidInput: a value makes no sense.
    """

    video_bitrate: int | None = None
    gop_s: float = 2.0
    preset: Preset = "veryfast"
    audio_codec: AudioCodec = "aac"
    audio_bitrate: int = 128_000
    threads: int = 0
    rung: Rung | None = None

    def __post_init__(self) -> None:
        for bitrate in (self.video_bitrate, self.audio_bitrate):
            if bitrate is not None and not (isinstance(bitrate, int) and 0 < bitrate <= MAX_BITRATE):
                raise InvalidInput(f"no encoder takes {bitrate!r} bit/s: give a whole number up to {MAX_BITRATE:,}")
        if self.audio_codec not in AUDIO_ENCODERS:
            raise InvalidInput(f"not an audio codec: {self.audio_codec!r} (aac or opus)")
        if self.preset not in PRESETS:
            raise InvalidInput(f"not a preset of x264: {self.preset!r} ({', '.join(PRESETS)})")
        if not self.gop_s > 0:
            raise InvalidInput(f"keyframes cannot be {self.gop_s} s apart")


@dataclass(frozen=True, slots=True)
class VideoShape:
    """The format of encoded pictures.

    Attributes:
        width, height: in pixels; even.
        rate: frames per second, as far as it is known.
        pixel_aspect: a pixel's width divided by its height.
        colors: space, primaries and transfer, numbered as in ISO/IEC 23091-2 (libavutil's constants).
    """

    width: int
    height: int
    rate: Fraction
    pixel_aspect: Fraction | None = None
    colors: tuple[int, int, int] = (_UNKNOWN_COLORS,) * 3

    @classmethod
    def of(cls, picture: VideoFrame | VideoCodecContext, rate: Ratio | None, aspect: Ratio | None) -> VideoShape:
        """The shape of encoded pictures made of such pictures: both sides even, RGB in the colours of BT.601."""
        space = picture.colorspace
        is_rgb = space == _RGB or (picture.format is not None and picture.format.is_rgb)
        known = fraction(rate) if rate else USUAL_RATE
        return cls(
            width=max(2, 2 * round(picture.width / 2)),
            height=max(2, 2 * round(picture.height / 2)),
            rate=known if 0 < known <= MAX_RATE else USUAL_RATE,
            pixel_aspect=fraction(aspect) if aspect else None,
            colors=(_BT601 if is_rgb else int(space), int(picture.color_primaries), int(picture.color_trc)),
        )

    def on(self, rung: Rung | None) -> VideoShape:
        """The shape of the same picture on a rung of a ladder."""
        if rung is None:
            return self
        width, height = rung.fitted(self.width, self.height)
        return replace(self, width=width, height=height)

    def turned(self) -> VideoShape:
        """The shape of a picture that lies on its side."""
        aspect = None if self.pixel_aspect is None else 1 / self.pixel_aspect
        return replace(self, width=self.height, height=self.width, pixel_aspect=aspect)


class Encoder(ABC):
    """Encodes the frames of one stream.

    Raises:
        InvalidInput: PyAV is not installed, or this build of it has no such encoder, or that takes no such settings.

    Attributes:
        stream: the template for muxers; the packets belong to it.
        out_of_order: frames so far that were left out, all or in part, since the one before was there already.
    """

    stream: VideoStream | AudioStream

    def __init__(self, encoder: str, rate: Fraction | int, media: str) -> None:
        need_pyav()
        import av
        from av.codec import codecs_available

        if encoder not in codecs_available:
            raise InvalidInput(f"this build of PyAV has no encoder {encoder}")
        # Streams exist in containers only. This one discards everything, and gets nothing.
        self._container: OutputContainer = av.open(os.devnull, mode="w", format="null")
        self.stream = cast("VideoStream | AudioStream", self._container.add_stream(encoder, rate=rate))
        self._encoder = encoder
        self.out_of_order = 0
        self._expected: Fraction | None = None
        self._captured: deque[tuple[int, int]] = deque(maxlen=_REMEMBERED)  # media and capture times, in microseconds
        self._context: Any = self.stream.codec_context
        self._configure(self._context)
        try:
            self._context.open(strict=False)
        except (av.error.FFmpegError, OverflowError) as error:
            raise InvalidInput(f"the encoder {encoder} does not take {media}") from error
        self._container.start_encoding()

    def encode(self, frame: Any, captured_us: int | None = None) -> Iterator[Packet[Stream]]:
        """Encode a frame.

        Args:
            frame: a frame without a time begins where the one before it ended.
            captured_us: when it was captured, in microseconds of Unix time; its packets have that in ``opaque``.
        """
        if frame.pts is None or not frame.time_base:  # zero, with PyAV 19
            frame.time_base = frame.time_base or CLOCK
            frame.pts = round((self._expected or 0) / frame.time_base)
        begin = frame.pts * frame.time_base
        if self._has_jumped(begin):
            ahead = self._noted_ahead(begin)
            yield from self.restart()
            self._captured.extend(ahead)
        if captured_us is not None:
            self.note(begin, captured_us)
        yield from self._encoded(frame, begin)

    def note(self, time: Fraction, captured_us: int) -> None:
        """The frame at this media time, in seconds, was captured at ``captured_us``."""
        self._captured.append((round(time * 1_000_000), captured_us))

    def restart(self) -> Iterator[Packet[Stream]]:
        """Hand out the frames that are held back, and begin anew, with a keyframe: the next frame may have any time."""
        from av import CodecContext

        yield from self._packets(self._context.encode(None))
        self._context = CodecContext.create(self._encoder, "w")
        self._configure(self._context)
        self._expected = None
        self._captured.clear()  # media times may come again, with other times of capture

    def close(self) -> None:
        """Free it."""
        self._container.close()

    def _packets(self, packets: Iterable[Packet[Any]]) -> Iterator[Packet[Stream]]:
        for packet in packets:
            packet.stream = self.stream
            packet.opaque = None if packet.pts is None else self._captured_at(packet.pts * packet.time_base)
            yield packet

    def _noted_ahead(self, begin: Fraction) -> list[tuple[int, int]]:
        """The known times of capture of the place that begins there: a decoder may hold its frames back."""
        here, before = round(begin * 1_000_000), round((self._expected or begin) * 1_000_000)
        notes = reversed(self._captured)
        ahead = list(takewhile(lambda known: abs(known[0] - here) <= abs(known[0] - before), notes))
        return ahead[::-1]

    def _captured_at(self, time: Fraction) -> int | None:
        """When that was captured, judged by the nearest known time."""
        time_us = round(time * 1_000_000)
        nearest = min(self._captured, key=lambda known: abs(known[0] - time_us), default=None)
        if nearest is None or abs(nearest[0] - time_us) > JUMP_S * 1_000_000:
            return None
        return nearest[1] + time_us - nearest[0]

    @abstractmethod
    def _configure(self, context: Any) -> None: ...

    @abstractmethod
    def _has_jumped(self, begin: Fraction) -> bool:
        """Whether the next frame is at another place in time than those before."""

    @abstractmethod
    def _encoded(self, frame: Any, begin: Fraction) -> Iterator[Packet[Stream]]: ...


class VideoEncoder(Encoder):
    """Encodes pictures of any size and format.

    A picture that is not later than the one before it, and out of order, is left out.

    Args:
        shape: all pictures are brought to it.
    """

    def __init__(self, shape: VideoShape, encoding: Encoding) -> None:
        need_pyav()
        from av.video.reformatter import VideoReformatter

        self._shape = shape
        self._coding = encoding
        self._last: int | None = None  # when the newest picture begins, in ticks of the clock
        self._next_keyframe: Fraction | None = None
        self._reformatter = VideoReformatter()
        quality = "" if encoding.video_bitrate is None else f" at {encoding.video_bitrate} bit/s"
        media = f"a picture of {shape.width}x{shape.height}, {float(shape.rate):g} a second{quality}"
        super().__init__(VIDEO_ENCODER, shape.rate, media)

    def begin_group(self) -> None:
        """Make the next picture a keyframe; the distances of those behind it are counted from there."""
        self._next_keyframe = None

    def restart(self) -> Iterator[Packet[Stream]]:
        yield from super().restart()
        self._last = self._next_keyframe = None

    def _has_jumped(self, begin: Fraction) -> bool:
        return self._last is not None and self._last - round(begin / CLOCK) > MAX_BACK

    def _encoded(self, frame: VideoFrame, begin: Fraction) -> Iterator[Packet[Stream]]:
        from av.video.frame import PictureType

        time = round(begin / CLOCK)
        if self._last is not None and time <= self._last:
            self.out_of_order += 1
            return
        picture = self._reformatter.reformat(
            frame,
            self._shape.width,
            self._shape.height,
            "yuv420p",  # the only format that every decoder of H.264 takes
            dst_colorspace=_SWS_BT601 if frame.colorspace == _RGB else None,
            dst_color_range=_LIMITED_RANGE,
            interpolation="BICUBIC",
        )
        own = frame.pts, frame.time_base, frame.duration
        picture.pts, picture.time_base = time, CLOCK
        picture.duration = round(1 / self._shape.rate / CLOCK)
        picture.pict_type = PictureType.I if self._is_keyframe(begin) else PictureType.NONE
        packets = self._context.encode(picture)
        frame.pts, frame.time_base, frame.duration = own  # it may be the same object, and is the caller's
        self._last, self._expected = time, begin + 1 / self._shape.rate
        yield from self._packets(packets)

    def _is_keyframe(self, time: Fraction) -> bool:
        """Keyframes stand at multiples of the distance, counted from the first; with any frame rate."""
        if self._next_keyframe is None:
            self._next_keyframe = time
        if time < self._next_keyframe:
            return False
        distance = Fraction(self._coding.gop_s).limit_denominator(1000)
        self._next_keyframe += distance * ((time - self._next_keyframe) // distance + 1)
        return True

    def _configure(self, context: VideoCodecContext) -> None:
        from av.codec.context import Flags

        shape, coding = self._shape, self._coding
        context.width, context.height, context.pix_fmt = shape.width, shape.height, "yuv420p"
        context.framerate, context.time_base = shape.rate, CLOCK
        if shape.pixel_aspect is not None:
            context.sample_aspect_ratio = shape.pixel_aspect
        context.color_range = _LIMITED_RANGE
        context.colorspace, context.color_primaries, context.color_trc = shape.colors
        context.flags |= Flags.global_header | Flags.closed_gop | Flags.frame_duration
        context.thread_count = coding.threads
        context.options = {
            "preset": coding.preset,
            "tune": "zerolatency",
            "forced-idr": "1",
            "sc_threshold": "0",
            "g": str(_NO_LIMIT),
        }
        if coding.video_bitrate is None:
            context.options |= {"crf": str(QUALITY)}
        else:
            context.bit_rate = coding.video_bitrate
            context.options |= {"maxrate": str(coding.video_bitrate), "bufsize": str(coding.video_bitrate)}


class AudioEncoder(Encoder):
    """Encodes sound of any format.

    Missing sound is filled up with silence, and surplus sound is cut, so that it keeps to its timestamps. Sound of a
    time that was heard already is counted as out of order.

    Args:
        rate: in Hz; where players do not know it for this codec, the highest one that they know is used.
        layout: the channels, ``mono`` or ``stereo``.
    """

    def __init__(self, rate: int, layout: str, encoding: Encoding) -> None:
        rates = RATES[encoding.audio_codec]
        self._rate = rate if rate in rates else max(rates)
        self._layout = layout
        self._coding = encoding
        self._filters = _Filters(self._resampler)
        self._heard: Fraction | None = None  # sound up to this time is cut
        media = f"{layout} sound of {self._rate} Hz at {encoding.audio_bitrate} bit/s"
        super().__init__(AUDIO_ENCODERS[encoding.audio_codec], self._rate, media)

    def restart(self) -> Iterator[Packet[Stream]]:
        for frame in self._filters.rest():
            yield from self._packets(self._context.encode(frame))
        yield from super().restart()
        self._heard = None

    def _has_jumped(self, begin: Fraction) -> bool:
        return self._expected is not None and not -BACK_S <= begin - self._expected <= JUMP_S

    def _encoded(self, frame: AudioFrame, begin: Fraction) -> Iterator[Packet[Stream]]:
        if self._expected is not None and self._expected - begin > _CUT_S:
            self._heard = max(self._heard or self._expected, self._expected)
        self.out_of_order += self._heard is not None and begin < self._heard
        self._expected = begin + Fraction(frame.samples, frame.sample_rate)
        for resampled in self._filters.passed(frame, (frame.format.name, frame.layout.name, frame.sample_rate)):
            yield from self._packets(self._context.encode(resampled))

    def _resampler(self, frame: AudioFrame) -> Graph:
        from av.filter import Graph

        context = self._context
        context.open(strict=False)
        graph = Graph()
        source = graph.add_abuffer(
            sample_rate=frame.sample_rate, format=frame.format, layout=frame.layout, time_base=frame.time_base
        )
        wanted = f"sample_fmts={context.format.name}:channel_layouts={self._layout}:sample_rates={self._rate}"
        graph.link_nodes(
            source, graph.add("aresample", _RESAMPLE), graph.add("aformat", wanted), graph.add("abuffersink")
        ).configure()
        graph.set_audio_frame_size(context.frame_size)
        return graph

    def _configure(self, context: AudioCodecContext) -> None:
        from av.codec.context import Flags

        formats = context.codec.audio_formats
        assert formats, "an encoder of sound names its formats"
        context.format, context.layout = formats[0].name, self._layout
        context.sample_rate, context.time_base = self._rate, Fraction(1, self._rate)
        context.bit_rate = self._coding.audio_bitrate
        context.flags |= Flags.global_header


def encoder_for(media: Any, encoding: Encoding, rate: Fraction | None = None) -> Encoder:
    """An encoder for frames of one shape.

    Args:
        media: one of the frames, or a decoder that knows their shape.
        rate: pictures per second, if that is known.
    """
    if hasattr(media, "sample_rate"):
        return AudioEncoder(media.sample_rate, "mono" if media.layout.nb_channels == 1 else "stereo", encoding)
    return VideoEncoder(VideoShape.of(media, rate, None).on(encoding.rung), encoding)


# Pictures before they are encoded.

_TURNS: Final[Mapping[tuple[int, ...], str]] = {
    (0, 1, -1, 0): "transpose=clock",
    (-1, 0, 0, -1): "hflip,vflip",
    (0, -1, 1, 0): "transpose=cclock",
    (-1, 0, 0, 1): "hflip",
    (1, 0, 0, -1): "vflip",
    (0, 1, 1, 0): "transpose=cclock_flip",
    (0, -1, -1, 0): "transpose=clock_flip",
}
"""libavfilter's names for the ways in which a picture can be turned, by the first numbers of its matrix (ISO/IEC
14496-12, section 8.3.2)."""

_WITH_MATRIX: Final = frozenset({"mov", "mp4", "matroska", "webm", "avi"})


def turn_of(stream: Stream) -> str:
    """The filters that turn a stream's pictures as its container says; empty if they stand as they are.

    PyAV shows no container's matrix. But libavformat copies it into MP4, in whose header it is found.
    """
    import av

    names = set() if stream.container is None else set(stream.container.format.name.split(","))
    if stream.type != "video" or not names & _WITH_MATRIX:
        return ""
    sink = io.BytesIO()
    try:
        with av.open(sink, "w", format="mp4", container_options={"movflags": "empty_moov"}) as muxer:
            copied(stream, muxer)
            muxer.start_encoding()
    except (av.error.FFmpegError, ValueError):  # MP4 has no such codec
        return ""
    header = find_box(sink.getvalue(), b"moov", b"trak", b"tkhd")
    at = 52 if header[:1] == b"\1" else 40
    numbers = [int.from_bytes(header[place : place + 4], signed=True) for place in (at, at + 4, at + 12, at + 16)]
    return _TURNS.get(tuple(round(number / 65536) for number in numbers), "")


class _Upright:
    """Turns pictures, and makes whole ones of interlaced ones, at the same rate.

    A filter that does so holds one picture back. So it is set up when the first interlaced picture comes.

    Args:
        turn: how they are turned, as :func:`turn_of` says.
    """

    def __init__(self, turn: str) -> None:
        self._turn = turn
        self._is_interlaced = False  # an interlaced picture has come
        self._filters = _Filters(self._made)

    def pictures(self, frame: VideoFrame | None) -> Iterator[VideoFrame]:
        """The pictures that are done; ``None``: no more come."""
        if frame is None:
            return self._filters.rest()
        self._is_interlaced |= frame.interlaced_frame
        of_frame = (self._is_interlaced, frame.width, frame.height, frame.format.name, frame.time_base)
        return self._filters.passed(frame, of_frame)

    def _made(self, frame: VideoFrame) -> Graph | None:
        filters = [*(["bwdif=mode=send_frame:deint=interlaced"] if self._is_interlaced else []), self._turn]
        description = ",".join(filter(None, filters))
        return _graph(description, frame) if description else None


class _Filters:
    """Frames through filters of libavfilter, which are set up anew where the frames change.

    Args:
        make: sets up the filters for frames like this one; ``None``: these pass as they are.
    """

    def __init__(self, make: Callable[[Any], Graph | None]) -> None:
        self._make = make
        self._graph: Graph | None = None
        self._input: tuple[object, ...] | None = None  # properties of the frames that the graph was made for

    def passed(self, frame: Any, of_frame: tuple[object, ...]) -> Iterator[Any]:
        """The frames that are done; ``of_frame`` is all that the filters depend on."""
        if of_frame != self._input:
            yield from self.rest()
            self._input, self._graph = of_frame, self._make(frame)
        if self._graph is None:
            yield frame
        else:
            self._graph.push(frame)
            yield from _pulled(self._graph)

    def rest(self) -> Iterator[Any]:
        """The frames that are held back."""
        graph, self._graph, self._input = self._graph, None, None
        if graph is not None:
            graph.push(None)
            yield from _pulled(graph)


def _pulled(graph: Graph) -> Iterator[Any]:
    from av.error import BlockingIOError, EOFError

    while True:
        try:
            yield graph.pull()
        except (BlockingIOError, EOFError):
            return


def _graph(description: str, frame: VideoFrame) -> Graph:
    from av.filter import Graph

    graph = Graph()
    nodes = [graph.add_buffer(width=frame.width, height=frame.height, format=frame.format, time_base=frame.time_base)]
    for one in description.split(","):
        name, _, arguments = one.partition("=")
        nodes.append(graph.add(name, arguments or None))
    graph.link_nodes(*nodes, graph.add("buffersink")).configure()
    return graph


class Transcoder:
    """A :class:`~tricklecast.publisher.media.source.MediaSource` made of another one: it decodes and encodes anew.

    It takes the first video stream and all audio streams; text passes as it is. Times of capture that the source gives
    are passed on.

    It may encode each decoded frame several times (:meth:`rungs`). All these streams have keyframes at the same times.

    Args:
        source: is closed with the transcoder.
        encodings: how it is encoded: once for each of them; as a source it has the streams of the first.
        warn: called with one line about every stream that is left out or damaged.

    Raises:
        InvalidInput: nothing of the source can be decoded, or PyAV cannot encode it; the source is closed.
    """

    def __init__(self, source: MediaSource, encodings: Sequence[Encoding], warn: Callable[[str], None]) -> None:
        self._source = source
        self._encodings = encodings
        self._warn = warn
        self._damaged: set[int] = set()
        self._goes_back: set[int] = set()  # streams of which frames out of order were told
        self._decoders: dict[int, CodecContext] = {}
        self._upright = _Upright("")  # of the video stream
        self._encoders: list[dict[int, Encoder]] = [{} for _ in self._encodings]
        self._texts: dict[int, Stream] = {}  # they pass as they are
        try:
            for track, stream in source.streams.items():
                self._add(track, stream)
            if not self._decoders:
                raise InvalidInput("the source has no video or audio that can be decoded")
        except InvalidInput:
            self.close()
            raise

    @property
    def streams(self) -> Mapping[int, Stream]:
        """The encoded streams, which are no streams of the source, and its text."""
        return self.streams_of(0)

    def streams_of(self, rung: int) -> Mapping[int, Stream]:
        """The same of one of several encodings."""
        return {**{track: encoder.stream for track, encoder in self._encoders[rung].items()}, **self._texts}

    def packets(self) -> Iterator[tuple[int, Packet[Stream]]]:
        """The encoded packets; a picture's as soon as it is decoded.

        Raises:
            OSError: the source broke. The packets before that have been handed out.
        """
        for rung, track, packet in self.rungs():
            if not rung:
                yield track, packet

    def rungs(self) -> Iterator[tuple[int, int, Packet[Stream]]]:
        """The packets of all encodings, each with the number of its encoding and of its stream.

        Raises:
            OSError: as :meth:`packets`.
        """
        from av import Packet

        failure: OSError | None = None
        time_bases: dict[int, Ratio] = {}
        try:
            for track, packet in self._source.packets():
                if track in self._decoders:
                    time_bases[track] = packet.time_base
                    yield from self._transcoded(track, packet)
                elif track in self._texts:
                    for rung in range(len(self._encoders)):
                        yield rung, track, packet
        except OSError as error:
            failure = error
        for track, first in self._encoders[0].items():
            empty: Packet[Stream] = Packet()
            empty.time_base = fraction(time_bases.get(track, CLOCK))
            yield from self._transcoded(track, empty)
            if isinstance(first, VideoEncoder):
                for frame in self._upright.pictures(None):
                    yield from self._encoded(track, frame)
            for rung, encoders in enumerate(self._encoders):
                for packet in encoders[track].restart():
                    yield rung, track, packet
            if first.out_of_order:
                self._warn(f"stream {track}: {count(first.out_of_order, 'frame')} out of order left out")
        if failure is not None:
            raise failure

    @property
    def strays(self) -> int:
        return self._source.strays

    def late(self) -> Mapping[int, str]:
        return self._source.late()

    def close(self) -> None:
        """Close the source, and free the encoders."""
        self._source.close()
        for encoders in self._encoders:
            for encoder in encoders.values():
                encoder.close()

    def _transcoded(self, track: int, packet: Packet[Stream]) -> Iterator[tuple[int, int, Packet[Stream]]]:
        is_video = isinstance(self._encoders[0][track], VideoEncoder)
        if isinstance(packet.opaque, int) and packet.pts is not None:
            for encoders in self._encoders:
                encoders[track].note(packet.pts * packet.time_base, packet.opaque)
        for decoded in self._decoded(track, packet):
            for frame in self._upright.pictures(decoded) if is_video else [decoded]:
                yield from self._encoded(track, frame)

    def _encoded(self, track: int, frame: Any) -> Iterator[tuple[int, int, Packet[Stream]]]:
        for rung, encoders in enumerate(self._encoders):
            for packet in encoders[track].encode(frame):
                yield rung, track, packet
        if track not in self._goes_back and self._encoders[0][track].out_of_order:
            self._goes_back.add(track)
            self._warn(f"stream {track} goes back in time: frames that are not later than those before are left out")

    def _decoded(self, track: int, packet: Packet[Stream]) -> list[Any]:
        from av.error import FFmpegError

        try:
            return cast("Any", self._decoders[track]).decode(packet)  # type: ignore[no-any-return]
        except FFmpegError:  # a decoder reads nothing else: the packet is damaged
            if track not in self._damaged:
                self._damaged.add(track)
                self._warn(f"stream {track} is damaged: the frames that cannot be decoded are left out")
            return []

    def _add(self, track: int, stream: Stream) -> None:
        if is_text(stream):
            self._texts[track] = stream
            return
        is_encoded, late = False, ""
        context: Any = stream.codec_context
        if context is not None and not is_attached(stream):
            # A stream whose shape is not known has not been seen or heard.
            if stream.type == "video":
                has_begun = bool(context.width and context.height and context.pix_fmt)
                is_encoded = has_begun and not any(one.stream.type == "video" for one in self._encoders[0].values())
            else:
                is_encoded = has_begun = stream.type == "audio" and bool(context.sample_rate and context.channels)
            if not has_begun and stream.type in ("video", "audio"):
                late = ", of which nothing was seen or heard when the input was opened"
        if not is_encoded:
            self._warn(f"left out: stream {track} ({stream.type}){late}")
            return
        if stream.type == "video":
            video, turn = cast("VideoStream", stream), turn_of(stream)
            self._upright = _Upright(turn)
            shape = VideoShape.of(context, video.guessed_rate or video.average_rate, video.sample_aspect_ratio)
            shape = shape.turned() if "transpose" in turn else shape
            made: list[Encoder] = [VideoEncoder(shape.on(one.rung), one) for one in self._encodings]
        else:
            made = [encoder_for(context, one) for one in self._encodings]
        for encoders, encoder in zip(self._encoders, made, strict=True):
            encoders[track] = encoder
            if language := stream.metadata.get("language"):
                encoder.stream.metadata["language"] = language
        # The stream of an encoder has no decoder of its own.
        self._decoders[track] = context if context.is_decoder else new_decoder(stream)
