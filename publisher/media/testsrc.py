"""A generated picture with a running clock, and a tone: something to publish where there is no camera.

The picture moves; over it stand the wall-clock time for programs (:mod:`tricklecast.trickle.media.clock`), the time
of day (UTC) and the frame's number for people, and a white square that flashes as each second of media begins. The
tone beeps then, so that picture and sound can be compared.

The source paces itself: a frame comes when its time has come, so that the clock shows when it was "captured". Whoever
publishes it need not wait once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, cast

from tricklecast.publisher.media.coding import AudioCodec, AudioCoding, VideoCoding, VideoShape
from tricklecast.publisher.media.encode import AudioEncoder, Encoders, VideoEncoder
from tricklecast.publisher.media.pace import Clock, Pace
from tricklecast.publisher.media.picture import Painter
from tricklecast.trickle.errors import InvalidInput
from tricklecast.trickle.terminal import parse_bitrate, parse_duration

if TYPE_CHECKING:
    from av import Packet
    from av.audio.frame import AudioFrame
    from av.filter import Graph
    from av.stream import Stream
    from av.video.frame import VideoFrame

NAME: Final = "testsrc"
AUDIO_RATE: Final = 48_000
SAMPLES: Final = 960
"""Samples per step of the tone, in each of which it leaves: 20 ms."""

MIN_SIZE: Final = (160, 90)
"""The least width and height: the smallest whose clock is read reliably."""

MAX_SIZE: Final = (3840, 2160)
BITS_PER_PIXEL: Final = 0.12
"""Bits for each pixel of each frame, where no bitrate is given: the clocks are sharp, the rest is good enough."""

MIN_BITRATE: Final = 100_000
PRESET: Final = "superfast"

# Rates that are fractions and that people write as decimals (SMPTE ST 12-1).
_NTSC: Final = {"23.976": Fraction(24000, 1001), "29.97": Fraction(30000, 1001), "59.94": Fraction(60000, 1001)}


@dataclass(frozen=True, slots=True)
class TestOptions:
    """What the test source generates.

    Attributes:
        size: width and height in pixels; even.
        rate: frames per second.
        duration: in seconds; ``None``: without end.
        speed: seconds of media per second; ``None``: as fast as it goes, with a clock that runs with the media.
        gop: from keyframe to keyframe, in seconds.
        bitrate: of the picture, in bits per second; ``None``: by its size.
        audio: what the tone is encoded as; ``None``: no tone.
        tone: its frequency, in Hz.
    """

    __test__ = False  # it is no test, whatever pytest makes of its name

    size: tuple[int, int] = (640, 360)
    rate: Fraction = Fraction(25)
    duration: float | None = None
    speed: float | None = 1.0
    gop: float = 1.0
    bitrate: int | None = None
    audio: AudioCodec | None = AudioCodec.AAC
    tone: int = 440

    @classmethod
    def parse(cls, text: str) -> TestOptions:
        """Read ``testsrc``, or ``testsrc:`` and options as in ``size=640x360,rate=25,duration=10s,speed=8``.

        The others are ``gop=1s``, ``bitrate=500k``, ``audio=opus`` (or ``aac``, ``none``) and ``tone=440``;
        ``speed=max`` is without pacing.

        Raises:
            InvalidInput: an option is unknown, doubled or has no sensible value.
        """
        name, _, options = text.partition(":")
        if name != NAME:
            raise InvalidInput(f"not a test source: {text!r}")
        values: dict[str, Any] = {}
        for option in filter(None, options.split(",")):
            key, given, value = option.partition("=")
            if key not in _OPTIONS:
                raise InvalidInput(f"{NAME} has no option {key!r}; it has {', '.join(_OPTIONS)}")
            parse, example = _OPTIONS[key]
            if not given or key in values:
                raise InvalidInput(f"{NAME}: {key} needs one value, as in {key}={example}")
            try:
                values[key] = parse(value)
            except InvalidInput as error:
                raise InvalidInput(f"{NAME}: {key}={value}: {error}") from error
            except ValueError as error:
                raise InvalidInput(
                    f"{NAME}: {key}={value} makes no sense; it is written as in {key}={example}"
                ) from error
        return cls(**values)


class TestSource:
    """A :class:`tricklecast.publisher.media.source.MediaSource` that generates.

    Each packet says in ``opaque`` when it was captured, in microseconds of Unix time.

    Args:
        options: what.
        is_stopped: the packets end soon after it returns ``True``.
        clock: what the time is taken from.

    Raises:
        InvalidInput: PyAV is not installed, or has no encoder for it.
    """

    __test__ = False

    def __init__(
        self,
        options: TestOptions | None = None,
        *,
        is_stopped: Callable[[], bool] = lambda: False,
        clock: Clock | None = None,
    ) -> None:
        self._options = TestOptions() if options is None else options
        self._is_stopped = is_stopped
        self._clock = clock
        self._painter = Painter(*self._options.size)
        self._encoders = Encoders()
        self._video = self._add_video()
        self._audio = self._add_audio()
        self._encoders.open()

    @property
    def streams(self) -> Sequence[Stream]:
        """The picture, and the tone if there is one."""
        return [encoder.stream for encoder in (self._video, self._audio) if encoder is not None]

    def packets(self) -> Iterator[Packet[Stream]]:
        """The packets, each as its time has come; the time begins to run with the first."""
        pace = Pace(self._options.speed, self._is_stopped, self._clock)
        frames, tone = self._pictures(), self._tones()
        frame, sound = next(frames, None), next(tone, None)
        while frame is not None or sound is not None:
            if frame is not None and (sound is None or _begin(frame) < _end(sound)):
                if not pace.wait(float(_begin(frame))):
                    return
                yield from self._picture_packets(frame, pace)
                frame = next(frames, None)
            elif sound is not None:
                if not pace.wait(float(_end(sound))):
                    return
                assert self._audio is not None
                yield from _captured(self._audio.encode(sound), pace)
                sound = next(tone, None)
        yield from _captured(self._video.restart(), pace)
        if self._audio is not None:
            yield from _captured(self._audio.restart(), pace)

    def close(self) -> None:
        """Free the encoders."""
        self._encoders.close()

    def _add_video(self) -> VideoEncoder:
        options = self._options
        width, height = options.size
        bitrate = options.bitrate or max(MIN_BITRATE, round(width * height * options.rate * BITS_PER_PIXEL))
        shape = VideoShape(width, height, options.rate, 1 / options.rate)
        return self._encoders.add_video(shape, VideoCoding(bitrate, options.gop, PRESET, threads=1))

    def _add_audio(self) -> AudioEncoder | None:
        if self._options.audio is None:
            return None
        return self._encoders.add_audio(AUDIO_RATE, "mono", AudioCoding(self._options.audio, 64_000))

    def _pictures(self) -> Iterator[VideoFrame]:
        """The pictures that lie below the clock."""
        width, height = self._options.size
        graph = _generator("testsrc2", f"size={width}x{height}:rate={self._options.rate}", "format", "yuv420p")
        while True:
            frame = graph.vpull()
            if self._is_over(_begin(frame)):
                return
            yield frame

    def _tones(self) -> Iterator[AudioFrame]:
        if self._audio is None:
            return
        tone = f"frequency={self._options.tone}:beep_factor=4:sample_rate={AUDIO_RATE}:samples_per_frame={SAMPLES}"
        graph = _generator("sine", tone, "aformat", "sample_fmts=fltp")
        while True:
            sound = cast("AudioFrame", graph.pull())
            if self._is_over(_begin(sound)):
                return
            yield sound

    def _is_over(self, time: Fraction) -> bool:
        return self._options.duration is not None and time >= self._options.duration

    def _picture_packets(self, frame: VideoFrame, pace: Pace) -> Iterator[Packet[Stream]]:
        time = _begin(frame)
        assert frame.pts is not None
        # The first frame of each second: the one before it lies in another second.
        flash = int(time) != int(time - 1 / self._options.rate) or frame.pts == 0
        self._painter.paint(frame, frame.pts, pace.unix_us(float(time)), flash=flash)
        yield from _captured(self._video.encode(frame), pace)


def _generator(source: str, arguments: str, then: str, format_: str) -> Graph:
    from av.filter import Graph

    graph = Graph()
    sink = graph.add("abuffersink" if then == "aformat" else "buffersink")
    graph.link_nodes(graph.add(source, arguments), graph.add(then, format_), sink).configure()
    return graph


def _begin(frame: VideoFrame | AudioFrame) -> Fraction:
    assert frame.pts is not None
    assert frame.time_base is not None
    return frame.pts * frame.time_base


def _end(sound: AudioFrame) -> Fraction:
    return _begin(sound) + Fraction(sound.samples, sound.sample_rate)


def _captured(packets: Iterator[Packet[Stream]], pace: Pace) -> Iterator[Packet[Stream]]:
    for packet in packets:
        assert packet.pts is not None
        packet.opaque = pace.unix_us(float(packet.pts * packet.time_base))
        yield packet


def _parse_size(text: str) -> tuple[int, int]:
    width, height = (int(side) for side in text.split("x"))
    if width % 2 or height % 2:
        raise InvalidInput("both sides must be even")
    if not (MIN_SIZE[0] <= width <= MAX_SIZE[0] and MIN_SIZE[1] <= height <= MAX_SIZE[1]):
        raise InvalidInput("it must lie between {}x{} and {}x{}".format(*MIN_SIZE, *MAX_SIZE))
    return width, height


def _parse_rate(text: str) -> Fraction:
    try:
        rate = _NTSC.get(text) or Fraction(text).limit_denominator(1001)
    except ZeroDivisionError:
        rate = Fraction(0)
    if not 1 <= rate <= 240:
        raise InvalidInput("it must lie between 1 and 240 frames per second")
    return rate


def _parse_speed(text: str) -> float | None:
    if text == "max":
        return None
    speed = float(text)
    if not 0.01 <= speed <= 1000:
        raise InvalidInput("it must lie between 0.01 and 1000, or be max")
    return speed


def _parse_audio(text: str) -> AudioCodec | None:
    return None if text == "none" else AudioCodec.parse(text)


def _parse_tone(text: str) -> int:
    tone = int(text)
    if not 20 <= tone <= 20_000:
        raise InvalidInput("it must lie between 20 and 20000 Hz")
    return tone


_OPTIONS: Final[dict[str, tuple[Callable[[str], Any], str]]] = {
    "size": (_parse_size, "640x360"),
    "rate": (_parse_rate, "25"),
    "duration": (parse_duration, "10s"),
    "speed": (_parse_speed, "8"),
    "gop": (parse_duration, "1s"),
    "bitrate": (parse_bitrate, "500k"),
    "audio": (_parse_audio, "opus"),
    "tone": (_parse_tone, "440"),
}
"""How each of the attributes of :class:`TestOptions` is read, and an example."""
