"""Encoders whose packets any muxer takes: H.264, and AAC or Opus.

Each has a stream that serves muxers as a template. Parameter sets are in its extradata, as MP4 needs them; for MPEG-TS
a bit stream filter repeats them before keyframes, as for any source that keeps them there.

Encoding is for live media: a frame that goes in comes out at once, keyframes stand at fixed times, and every group of
pictures is closed. An encoder can begin anew, where time jumps, without its stream changing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, cast

from tricklecast.publisher.media.coding import QUALITY, AudioCoding, VideoCoding, VideoShape
from tricklecast.trickle.errors import InvalidInput

if TYPE_CHECKING:
    from av import Packet
    from av.audio.codeccontext import AudioCodecContext
    from av.audio.frame import AudioFrame
    from av.audio.stream import AudioStream
    from av.container import OutputContainer
    from av.filter import Graph
    from av.stream import Stream
    from av.video.codeccontext import VideoCodecContext
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

VIDEO_ENCODER: Final = "libx264"
_NO_LIMIT: Final = 1 << 30
"""No keyframe that was not asked for: x264 takes this as "infinite"."""

# Recordings lose frames and clocks differ: up to 2 % of stretching where sound is 10 ms off its timestamps; where it is
# 50 ms off, silence or a cut (a viewer notices sound that is 45 ms early, ITU-R BT.1359).
_RESAMPLE: Final = "async=1000:min_comp=0.01:min_hard_comp=0.05"


class Encoders:
    """The encoders of one programme. All are added before the first one is used.

    Raises:
        InvalidInput: PyAV is not installed.
    """

    def __init__(self) -> None:
        try:
            import av
        except ImportError as error:
            raise InvalidInput('encoding media needs PyAV: pip install "tricklecast[media]"') from error
        # Streams exist in containers only. This one discards everything, and is given nothing.
        self._container: OutputContainer = av.open(os.devnull, mode="w", format="null")
        self._encoders: list[VideoEncoder | AudioEncoder] = []

    def add_video(self, shape: VideoShape, coding: VideoCoding) -> VideoEncoder:
        """One more picture.

        Raises:
            InvalidInput: this build of PyAV has no encoder for it.
        """
        _require(VIDEO_ENCODER)
        encoder = VideoEncoder(self._container, shape, coding)
        self._encoders.append(encoder)
        return encoder

    def add_audio(self, rate: int, layout: str, coding: AudioCoding) -> AudioEncoder:
        """One more sound.

        Args:
            rate: in Hz, one of the codec's.
            layout: the channels, ``mono`` or ``stereo``.
            coding: how it is encoded.

        Raises:
            InvalidInput: this build of PyAV has no encoder for it.
        """
        _require(coding.codec.value)
        encoder = AudioEncoder(self._container, rate, layout, coding)
        self._encoders.append(encoder)
        return encoder

    def open(self) -> None:
        """Open all of them; from then on their streams are complete.

        Raises:
            InvalidInput: an encoder does not take its settings.
        """
        for encoder in self._encoders:
            encoder.open()
        self._container.start_encoding()

    def close(self) -> None:
        """Free them."""
        self._container.close()


class VideoEncoder:
    """Encodes pictures; made by :meth:`Encoders.add_video`.

    Attributes:
        stream: the template for muxers; the packets are of it.
    """

    def __init__(self, container: OutputContainer, shape: VideoShape, coding: VideoCoding) -> None:
        self._shape = shape
        self._coding = coding
        self.stream: VideoStream = container.add_stream(VIDEO_ENCODER, rate=shape.rate)
        self._context = self._configured(self.stream.codec_context)
        self._next_keyframe: Fraction | None = None

    def open(self) -> None:
        """Open it; called by :meth:`Encoders.open`.

        Raises:
            InvalidInput: it does not take its settings.
        """
        shape, coding = self._shape, self._coding
        quality = "" if coding.bitrate is None else f" at {coding.bitrate} bit/s"
        _open(self._context, f"a picture of {shape.width}x{shape.height}, {float(shape.rate):g} a second{quality}")

    def encode(self, frame: VideoFrame) -> Iterator[Packet[Stream]]:
        """Encode one picture.

        Args:
            frame: of the shape's size and format, later than the one before.
        """
        from av.video.frame import PictureType

        assert frame.pts is not None
        assert frame.time_base is not None
        frame.pict_type = PictureType.I if self._is_keyframe(frame.pts * frame.time_base) else PictureType.NONE
        yield from _belonging(self._context.encode(frame), self.stream)

    def restart(self) -> Iterator[Packet[Stream]]:
        """Hand out what is held back, and begin anew: the next frame is a keyframe, and may have any time."""
        from av import CodecContext

        yield from _belonging(self._context.encode(None), self.stream)
        self._context = self._configured(CodecContext.create(VIDEO_ENCODER, "w"))
        self._next_keyframe = None

    def _is_keyframe(self, time: Fraction) -> bool:
        """Keyframes stand at multiples of the distance, counted from the first; with any frame rate."""
        if self._next_keyframe is None:
            self._next_keyframe = time
        if time < self._next_keyframe:
            return False
        distance = Fraction(self._coding.gop_s).limit_denominator(1000)
        self._next_keyframe += distance * ((time - self._next_keyframe) // distance + 1)
        return True

    def _configured(self, context: VideoCodecContext) -> VideoCodecContext:
        from av.codec.context import Flags

        shape, coding = self._shape, self._coding
        context.width, context.height, context.pix_fmt = shape.width, shape.height, shape.pixel_format
        context.framerate, context.time_base = shape.rate, shape.time_base
        if shape.pixel_aspect is not None:
            context.sample_aspect_ratio = shape.pixel_aspect
        if shape.colors is not None:
            context.color_range, context.colorspace, context.color_primaries, context.color_trc = shape.colors
        context.flags |= Flags.global_header | Flags.closed_gop | Flags.frame_duration
        context.thread_count = coding.threads
        context.options = {
            "preset": coding.preset,
            "tune": "zerolatency",
            "forced-idr": "1",
            "sc_threshold": "0",
            "g": str(_NO_LIMIT),
        }
        if coding.bitrate is None:
            context.options |= {"crf": str(QUALITY)}
        else:
            context.bit_rate = coding.bitrate
            context.options |= {"maxrate": str(coding.bitrate), "bufsize": str(coding.bitrate)}
        return context


class AudioEncoder:
    """Encodes sound of any format; made by :meth:`Encoders.add_audio`.

    Sound that is missing is filled up with silence and sound that is too much is cut, so that it keeps to its
    timestamps.

    Attributes:
        stream: the template for muxers; the packets are of it.
    """

    def __init__(self, container: OutputContainer, rate: int, layout: str, coding: AudioCoding) -> None:
        self._rate = rate
        self._layout = layout
        self._coding = coding
        self.stream: AudioStream = container.add_stream(coding.codec.value, rate=rate)
        self._context = self._configured(self.stream.codec_context)
        self._input: tuple[str, str, int] | None = None
        self._graph: Graph | None = None

    def open(self) -> None:
        """Open it; called by :meth:`Encoders.open`.

        Raises:
            InvalidInput: it does not take its settings.
        """
        _open(self._context, f"{self._layout} sound of {self._rate} Hz at {self._coding.bitrate} bit/s")

    def encode(self, frame: AudioFrame) -> Iterator[Packet[Stream]]:
        """Encode a piece of sound.

        Args:
            frame: continues the one before, but for what was lost. Its format may change.
        """
        of_frame = (frame.format.name, frame.layout.name, frame.sample_rate)
        if of_frame != self._input:
            yield from self._drain()
            self._input = of_frame
        if self._graph is None:
            self._graph = self._resampler(frame)
        self._graph.push(frame)
        yield from self._pulled(self._graph)

    def restart(self) -> Iterator[Packet[Stream]]:
        """Hand out what is held back, and begin anew: the next frame may have any time."""
        from av import CodecContext

        yield from self._drain()
        yield from _belonging(self._context.encode(None), self.stream)
        codec = self._coding.codec.value
        self._context = self._configured(cast("AudioCodecContext", CodecContext.create(codec, "w")))

    def _drain(self) -> Iterator[Packet[Stream]]:
        if self._graph is not None:
            self._graph.push(None)
            yield from self._pulled(self._graph)
            self._graph = None

    def _pulled(self, graph: Graph) -> Iterator[Packet[Stream]]:
        from av.error import BlockingIOError, EOFError

        while True:
            try:
                frame = cast("AudioFrame", graph.pull())
            except (BlockingIOError, EOFError):
                break
            yield from _belonging(self._context.encode(frame), self.stream)

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

    def _configured(self, context: AudioCodecContext) -> AudioCodecContext:
        from av.codec.context import Flags

        formats = context.codec.audio_formats
        assert formats, "an encoder of sound says what it takes"
        context.format, context.layout = formats[0].name, self._layout
        context.sample_rate, context.time_base = self._rate, Fraction(1, self._rate)
        context.bit_rate = self._coding.bitrate
        context.flags |= Flags.global_header
        return context


def _require(encoder: str) -> None:
    from av.codec import codecs_available

    if encoder not in codecs_available:
        raise InvalidInput(f"this build of PyAV has no encoder {encoder}")


def _open(context: VideoCodecContext | AudioCodecContext, what: str) -> None:
    from av.error import FFmpegError

    name = context.codec.name  # it is gone when opening has failed
    try:
        context.open(strict=False)
    except (FFmpegError, OverflowError) as error:
        raise InvalidInput(f"the encoder {name} does not take {what}") from error


def _belonging(packets: Iterable[Packet[Any]], stream: Stream) -> Iterator[Packet[Stream]]:
    """Packets of a stream, whichever codec context made them."""
    for packet in packets:
        packet.stream = stream
        yield packet
