"""Streams on their way through a decoder and an encoder.

Where the decoded frames of a stream jump, by more than :data:`JUMP_S` back or, of sound, forth, its encoder begins
anew: the jump is passed on as it is, neither filled up nor smoothed. A picture that is not later than the one before it
is left out, and smaller holes and overlaps of sound are filled with silence or cut.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, cast

from tricklecast.publisher.media.coding import VideoShape
from tricklecast.publisher.media.encode import AudioEncoder, VideoEncoder
from tricklecast.publisher.media.turning import Turn, Turner

if TYPE_CHECKING:
    from av import Packet
    from av.audio.codeccontext import AudioCodecContext
    from av.audio.frame import AudioFrame
    from av.audio.stream import AudioStream
    from av.stream import Stream
    from av.video.codeccontext import VideoCodecContext
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

JUMP_S: Final = 1
"""What is further from where it is expected, in seconds, is another place in time, and no loss."""

CLOCK: Final = Fraction(1, 90_000)
"""The timestamps of encoded pictures: those of MPEG-TS, which most frame rates divide."""

_REMEMBERED: Final = 64
"""Capture times of so many packets are kept: more than decoders and encoders hold back."""

# libavutil's AVColorRange and AVColorSpace; the last is swscale's number for BT.601.
LIMITED_RANGE: Final = 1
FULL_RANGE: Final = 2
RGB: Final = 0
BT601: Final = 6
_SWS_BT601: Final = 5


class Track(ABC):
    """One stream.

    Args:
        stream: of the source.
        encoder: what its frames are given to.
        warn: is told, once, that the stream is damaged.
    """

    def __init__(
        self, stream: VideoStream | AudioStream, encoder: VideoEncoder | AudioEncoder, warn: Callable[[str], None]
    ) -> None:
        self.encoder = encoder
        self._index = stream.index
        self._decoder = _decoder(stream)
        self._warn = warn
        self._is_damaged = False
        self._time_base = stream.time_base or CLOCK
        self._captured = CaptureTimes()
        self._expected = Fraction(0)

    def packets(self, packet: Packet[Stream]) -> Iterator[Packet[Stream]]:
        """Decode a packet, and encode what comes of it."""
        self._time_base = packet.time_base
        if isinstance(packet.opaque, int) and packet.pts is not None:
            self._captured.note(float(packet.pts * packet.time_base), packet.opaque)
        yield from self._transcoded(packet)

    def finish(self) -> Iterator[Packet[Stream]]:
        """What the decoder and the encoder still hold."""
        from av import Packet

        empty: Packet[Stream] = Packet()
        empty.time_base = self._time_base
        yield from self._transcoded(empty)
        yield from self._timed(self.encoder.restart())

    def _transcoded(self, packet: Packet[Stream]) -> Iterator[Packet[Stream]]:
        from av.error import ArgumentError, ExternalError, InvalidDataError, PatchWelcomeError, UnknownError

        try:
            frames: list[Any] = self._decoder.decode(packet)
        except (InvalidDataError, ArgumentError, ExternalError, PatchWelcomeError, UnknownError):
            if not self._is_damaged:
                self._is_damaged = True
                self._warn(f"stream {self._index} is damaged: what cannot be decoded is left out")
            return
        for frame in frames:
            if frame.pts is None:  # where nothing says when it begins, it begins where the one before it ended
                frame.pts = round(self._expected / frame.time_base)
            yield from self._timed(self._encoded(frame, frame.pts * frame.time_base))

    def _timed(self, packets: Iterator[Packet[Stream]]) -> Iterator[Packet[Stream]]:
        for packet in packets:
            assert packet.pts is not None
            packet.opaque = self._captured.at(float(packet.pts * packet.time_base))
            yield packet

    @abstractmethod
    def _encoded(self, frame: Any, begin: Fraction) -> Iterator[Packet[Stream]]: ...


class VideoTrack(Track):
    """A picture, brought to one size and format, and upright."""

    encoder: VideoEncoder

    def __init__(
        self, stream: VideoStream, encoder: VideoEncoder, shape: VideoShape, turn: Turn, warn: Callable[[str], None]
    ) -> None:
        from av.video.reformatter import VideoReformatter

        super().__init__(stream, encoder, warn)
        self._shape = shape
        self._size = (shape.height, shape.width) if turn.swaps_sides else (shape.width, shape.height)
        self._turner = Turner(turn)
        self._last: Fraction | None = None
        self._reformatter = VideoReformatter()

    def _encoded(self, frame: VideoFrame, begin: Fraction) -> Iterator[Packet[Stream]]:
        if self._last is not None and begin <= self._last:
            if self._last - begin <= JUMP_S:
                return
            yield from self.encoder.restart()
        self._last = begin
        self._expected = begin + 1 / self._shape.rate
        yield from self.encoder.encode(self._turner.turned(self._reformatted(frame)))

    def _reformatted(self, frame: VideoFrame) -> VideoFrame:
        shape = self._shape
        return self._reformatter.reformat(
            frame,
            *self._size,
            shape.pixel_format,
            dst_colorspace=_SWS_BT601 if frame.colorspace == RGB else None,
            dst_color_range=FULL_RANGE if shape.is_full_range else LIMITED_RANGE,
            interpolation="BICUBIC",
        )


class AudioTrack(Track):
    """Sound of any format."""

    encoder: AudioEncoder
    _is_begun = False

    def _encoded(self, frame: AudioFrame, begin: Fraction) -> Iterator[Packet[Stream]]:
        if self._is_begun and abs(begin - self._expected) > JUMP_S:
            yield from self.encoder.restart()
        self._is_begun = True
        self._expected = begin + Fraction(frame.samples, frame.sample_rate)
        yield from self.encoder.encode(frame)


class CaptureTimes:
    """When what was captured, by its place in media time."""

    def __init__(self) -> None:
        self._known: deque[tuple[float, int]] = deque(maxlen=_REMEMBERED)

    def note(self, time_s: float, unix_us: int) -> None:
        """What is shown or heard at ``time_s`` was captured at ``unix_us``."""
        self._known.append((time_s, unix_us))

    def at(self, time_s: float) -> int | None:
        """When that was captured, judging by what is nearest to it."""
        nearest = min(self._known, key=lambda known: abs(known[0] - time_s), default=None)
        if nearest is None or abs(nearest[0] - time_s) > JUMP_S:
            return None
        return nearest[1] + round((time_s - nearest[0]) * 1_000_000)


def _decoder(stream: VideoStream | AudioStream) -> VideoCodecContext | AudioCodecContext:
    """The stream's own decoder; a new one where the stream comes from an encoder."""
    from av import CodecContext

    context = stream.codec_context
    if context.is_decoder:
        return context
    decoder = cast("VideoCodecContext | AudioCodecContext", CodecContext.create(context.codec.canonical_name, "r"))
    decoder.extradata = context.extradata
    return decoder
