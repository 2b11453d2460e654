"""Decodes a source and encodes it anew for live publishing: H.264, with AAC or Opus.

Timestamps stay as they are, of every frame: frame rates may vary, and sound keeps its distance to the picture.
Keyframes stand at fixed times, whatever the source had. What is encoded: the first video stream, and all audio streams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final, cast

from tricklecast.publisher.media.coding import AudioCodec, AudioCoding, VideoCoding, VideoShape
from tricklecast.publisher.media.encode import Encoders
from tricklecast.publisher.media.source import MediaSource
from tricklecast.publisher.media.tracks import (
    BT601,
    CLOCK,
    FULL_RANGE,
    LIMITED_RANGE,
    RGB,
    AudioTrack,
    Track,
    VideoTrack,
)
from tricklecast.publisher.media.turning import Turn
from tricklecast.trickle.errors import InvalidInput

if TYPE_CHECKING:
    from av import Packet
    from av.audio.stream import AudioStream
    from av.stream import Stream
    from av.video.stream import VideoStream

USUAL_RATE: Final = Fraction(25)
MAX_RATE: Final = 240
"""Containers that do not know their frame rate give that of their clock instead."""


@dataclass(frozen=True, slots=True)
class TranscodeOptions:
    """How to encode.

    Attributes:
        video_bitrate: in bits per second; ``None``: constant quality.
        gop: from keyframe to keyframe, in seconds.
        preset: x264's, one of :data:`tricklecast.publisher.media.coding.PRESETS`.
        height: of the picture, in pixels; smaller pictures are not enlarged. ``None``: as it is.
        audio_codec: AAC or Opus.
        audio_bitrate: of each audio stream, in bits per second.
    """

    video_bitrate: int | None = None
    gop: float = 2.0
    preset: str = "veryfast"
    height: int | None = None
    audio_codec: AudioCodec = AudioCodec.AAC
    audio_bitrate: int = 128_000


class Transcoder:
    """A :class:`tricklecast.publisher.media.source.MediaSource` made of another one.

    Times of capture that the source gives are passed on.

    Args:
        source: is closed with the transcoder.
        options: how to encode.
        warn: is told, once, about every stream that is left out or damaged.

    Raises:
        InvalidInput: nothing of the source can be decoded, or PyAV cannot encode it; the source is closed.
    """

    def __init__(self, source: MediaSource, options: TranscodeOptions, warn: Callable[[str], None]) -> None:
        self._source = source
        self._options = options
        self._warn = warn
        try:
            self._encoders = Encoders()
            self._tracks = self._chosen()
            if not self._tracks:
                raise InvalidInput("the source has no video or audio that can be decoded")
            self._encoders.open()
        except InvalidInput:
            source.close()
            raise

    @property
    def streams(self) -> Sequence[Stream]:
        """What is encoded; these are no streams of the source."""
        return [track.encoder.stream for track in self._tracks.values()]

    def packets(self) -> Iterator[Packet[Stream]]:
        """The encoded packets; a picture's as soon as it is decoded.

        Raises:
            OSError: the source broke. What came before has been handed out.
        """
        failure: OSError | None = None
        packets = iter(self._source.packets())
        while failure is None:
            try:
                packet = next(packets)
            except StopIteration:
                break
            except OSError as error:
                failure = error
            else:
                if track := self._tracks.get(packet.stream_index):
                    yield from track.packets(packet)
        for track in self._tracks.values():
            yield from track.finish()
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Close the source, and free the encoders."""
        self._source.close()
        self._encoders.close()

    def _chosen(self) -> dict[int, Track]:
        tracks: dict[int, Track] = {}
        has_video = False
        for stream in self._source.streams:
            track = None if stream.type == "video" and has_video else self._track(stream)
            if track is None:
                self._warn(f"left out: stream {stream.index} ({stream.type})")
                continue
            if language := stream.metadata.get("language"):
                track.encoder.stream.metadata["language"] = language
            tracks[stream.index] = track
            has_video |= stream.type == "video"
        return tracks

    def _track(self, stream: Stream) -> Track | None:
        """The way of a stream; ``None`` where it cannot be gone."""
        from av.stream import Disposition

        if stream.codec_context is None or stream.disposition & Disposition.attached_pic:
            return None
        if stream.type == "video":
            return self._video(cast("VideoStream", stream))
        return self._audio(cast("AudioStream", stream)) if stream.type == "audio" else None

    def _video(self, stream: VideoStream) -> Track | None:
        if not (stream.codec_context.width and stream.codec_context.height and stream.codec_context.pix_fmt):
            return None  # nothing of it has been seen
        options = self._options
        turn = Turn.of(stream)
        shape = _shape(stream, options.height, turn)
        encoder = self._encoders.add_video(shape, VideoCoding(options.video_bitrate, options.gop, options.preset))
        return VideoTrack(stream, encoder, shape, turn, self._warn)

    def _audio(self, stream: AudioStream) -> Track | None:
        context, options = stream.codec_context, self._options
        if not (context.sample_rate and context.channels):
            return None  # nothing of it has been heard
        rates = options.audio_codec.rates
        rate = context.sample_rate if context.sample_rate in rates else max(rates)
        layout = "mono" if context.channels == 1 else "stereo"
        coding = AudioCoding(options.audio_codec, options.audio_bitrate)
        return AudioTrack(stream, self._encoders.add_audio(rate, layout, coding), self._warn)


def _shape(stream: VideoStream, height: int | None, turn: Turn) -> VideoShape:
    """What the encoded picture is like."""
    context = stream.codec_context
    is_full = context.color_range == FULL_RANGE or (context.pix_fmt or "").startswith("yuvj")
    colors = (context.color_range, context.colorspace, context.color_primaries, context.color_trc)
    if is_full:
        colors = (FULL_RANGE, *colors[1:])
    if context.colorspace == RGB:
        is_full, colors = False, (LIMITED_RANGE, BT601, *colors[2:])
    full_width, full_height, aspect = context.width, context.height, stream.sample_aspect_ratio
    if turn.swaps_sides:
        full_width, full_height, aspect = full_height, full_width, 1 / aspect if aspect else None
    scaled = min(height or full_height, full_height)
    rate = stream.guessed_rate or stream.average_rate or USUAL_RATE
    return VideoShape(
        width=max(2, 2 * round(full_width * scaled / full_height / 2)),
        height=max(2, 2 * round(scaled / 2)),
        rate=rate if 0 < rate <= MAX_RATE else USUAL_RATE,
        time_base=CLOCK,
        is_full_range=is_full,
        pixel_aspect=aspect or None,
        colors=colors,
    )
