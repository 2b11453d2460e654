"""A generated picture with a running clock, and a tone: a source to publish where there is no camera.

The picture moves; over it stand the wall-clock time for programs (:mod:`tricklecast.trickle.media.clock`), the time
of day (UTC) and the frame's number for people, and a white square that flashes as each second of media begins. The
tone beeps then, so that picture and sound can be compared.

The source paces itself: a frame comes when its time has come, so that the clock shows when it was "captured".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from tricklecast.publisher.media.encode import AUDIO_ENCODERS, AudioEncoder, Encoder, Encoding, VideoEncoder, VideoShape
from tricklecast.publisher.media.pace import Clock, Pace
from tricklecast.publisher.steps import IsStopped
from tricklecast.trickle.amounts import parse_bitrate, parse_duration
from tricklecast.trickle.errors import InvalidInput
from tricklecast.trickle.media.clock import draw_clock, strip_height

if TYPE_CHECKING:
    from av import Packet
    from av.audio.frame import AudioFrame
    from av.filter import Graph
    from av.stream import Stream
    from av.video.frame import VideoFrame

N = TypeVar("N", float, Fraction)

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
TONE_HZ: Final = 440
TONE_BITRATE: Final = 64_000
PRESET: Final = "superfast"

# Rates that are fractions and that people write as decimals (SMPTE ST 12-1).
_NTSC: Final = {"23.976": Fraction(24000, 1001), "29.97": Fraction(30000, 1001), "59.94": Fraction(60000, 1001)}


@dataclass(frozen=True, slots=True)
class TestOptions:
    """The options of the test source.

    Attributes:
        size: width and height in pixels; even.
        rate: frames per second.
        duration: in seconds; ``None``: without end.
        speed: seconds of media per second; ``None``: as fast as it goes, with a clock that runs with the media.
        gop: from keyframe to keyframe, in seconds.
        bitrate: of the picture, in bits per second; ``None``: by its size.
        audio: the codec of the tone, ``"aac"`` or ``"opus"``; ``None``: no tone.
    """

    __test__ = False  # pytest takes it for a test by its name

    size: tuple[int, int] = (640, 360)
    rate: Fraction = Fraction(25)
    duration: float | None = None
    speed: float | None = 1.0
    gop: float = 1.0
    bitrate: int | None = None
    audio: str | None = "aac"

    @classmethod
    def parse(cls, text: str) -> TestOptions:
        """Read ``testsrc``, or ``testsrc:`` and options as in ``size=640x360,rate=25,duration=10s,speed=8``.

        The others are ``gop=1s``, ``bitrate=500k`` and ``audio=opus`` (or ``aac``, ``none``). ``speed=max`` is without
        pacing.

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
                raise InvalidInput(f"{NAME}: {key}={value} cannot be read; write it as in {key}={example}") from error
        return cls(**values)


class TestSource:
    """A :class:`~tricklecast.publisher.media.source.MediaSource` that generates.

    Each packet has in ``opaque`` when it was captured, in microseconds of Unix time.

    Args:
        is_stopped: the packets end soon after it returns ``True``.

    Raises:
        InvalidInput: PyAV is not installed, or has no encoder for it.
    """

    __test__ = False

    def __init__(
        self,
        options: TestOptions | None = None,
        *,
        is_stopped: IsStopped = lambda: False,
        clock: Clock | None = None,
    ) -> None:
        self._options = options = TestOptions() if options is None else options
        self._is_stopped = is_stopped
        self._clock = clock
        self._painter = Painter(*options.size)
        width, height = options.size
        bitrate = options.bitrate or max(MIN_BITRATE, round(width * height * options.rate * BITS_PER_PIXEL))
        encoding = Encoding(bitrate, options.gop, PRESET, options.audio or "aac", TONE_BITRATE, threads=1)  # type: ignore[arg-type]
        self._encoders: dict[int, Encoder] = {0: VideoEncoder(VideoShape(width, height, options.rate), encoding)}
        if options.audio is not None:
            self._encoders[1] = AudioEncoder(AUDIO_RATE, "mono", encoding)

    @property
    def streams(self) -> Mapping[int, Stream]:
        """The picture, and the tone if there is one."""
        return {track: encoder.stream for track, encoder in self._encoders.items()}

    def packets(self) -> Iterator[tuple[int, Packet[Stream]]]:
        """The packets, each as its time has come; the time begins to run with the first."""
        pace = Pace(self._options.speed, self._is_stopped, self._clock)
        frames, tone = self._pictures(), self._tones()
        frame, sound = next(frames, None), next(tone, None)
        while frame is not None or sound is not None:
            if frame is not None and (sound is None or _begin(frame) < _end(sound)):
                begin = _begin(frame)
                if not pace.wait(float(begin)):
                    return
                self._paint(frame, begin, pace)
                yield from self._captured(0, self._encoders[0].encode(frame), pace)
                frame = next(frames, None)
            elif sound is not None:
                if not pace.wait(float(_end(sound))):
                    return
                yield from self._captured(1, self._encoders[1].encode(sound), pace)
                sound = next(tone, None)
        for track, encoder in self._encoders.items():
            yield from self._captured(track, encoder.restart(), pace)

    @property
    def strays(self) -> int:
        return 0

    def late(self) -> Mapping[int, str]:
        return {}

    def close(self) -> None:
        for encoder in self._encoders.values():
            encoder.close()

    @staticmethod
    def _captured(track: int, packets: Iterator[Packet[Stream]], pace: Pace) -> Iterator[tuple[int, Packet[Stream]]]:
        for packet in packets:
            assert packet.pts is not None
            packet.opaque = pace.unix_us(float(packet.pts * packet.time_base))
            yield track, packet

    def _paint(self, frame: VideoFrame, begin: Fraction, pace: Pace) -> None:
        assert frame.pts is not None
        # The first frame of each second: the one before it lies in another second.
        flash = int(begin) != int(begin - 1 / self._options.rate) or frame.pts == 0
        self._painter.paint(frame, frame.pts, pace.unix_us(float(begin)), flash=flash)

    def _pictures(self) -> Iterator[VideoFrame]:
        width, height = self._options.size
        graph = _generator("testsrc2", f"size={width}x{height}:rate={self._options.rate}", "format", "yuv420p")
        while True:
            frame = graph.vpull()
            if self._is_over(_begin(frame)):
                return
            yield frame

    def _tones(self) -> Iterator[AudioFrame]:
        if self._options.audio is None:
            return
        tone = f"frequency={TONE_HZ}:beep_factor=4:sample_rate={AUDIO_RATE}:samples_per_frame={SAMPLES}"
        graph = _generator("sine", tone, "aformat", "sample_fmts=fltp")
        while True:
            sound = cast("AudioFrame", graph.pull())
            if self._is_over(_begin(sound)):
                return
            yield sound

    def _is_over(self, time: Fraction) -> bool:
        return self._options.duration is not None and time >= self._options.duration


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
    return _checked(rate, 1, 240, " frames per second")


def _parse_speed(text: str) -> float | None:
    return None if text == "max" else _checked(float(text), 0.01, 1000, ", or be max")


def _parse_audio(text: str) -> str | None:
    if text != "none" and text not in AUDIO_ENCODERS:
        raise InvalidInput("it must be aac, opus or none")
    return None if text == "none" else text


def _checked(value: N, least: float, most: float, unit: str) -> N:
    if not least <= value <= most:
        raise InvalidInput(f"it must lie between {least} and {most}{unit}")
    return value


_OPTIONS: Final[dict[str, tuple[Callable[[str], Any], str]]] = {
    "size": (_parse_size, "640x360"),
    "rate": (_parse_rate, "25"),
    "duration": (parse_duration, "10s"),
    "speed": (_parse_speed, "8"),
    "gop": (parse_duration, "1s"),
    "bitrate": (parse_bitrate, "500k"),
    "audio": (_parse_audio, "opus"),
}
"""Of each attribute of :class:`TestOptions`: its parser, and an example."""


# The clocks in the picture. PyAV's libavfilter has no font.

GLYPH_HEIGHT: Final = 7
ADVANCE: Final = 6
"""A glyph's five columns and the space behind it."""

# Seven lines per glyph, from top to bottom; five bits per line, the leftmost the highest.
_GLYPHS: Final = {
    "0": (0x0E, 0x11, 0x13, 0x15, 0x19, 0x11, 0x0E),
    "1": (0x04, 0x0C, 0x04, 0x04, 0x04, 0x04, 0x0E),
    "2": (0x0E, 0x11, 0x01, 0x02, 0x04, 0x08, 0x1F),
    "3": (0x1F, 0x02, 0x04, 0x02, 0x01, 0x11, 0x0E),
    "4": (0x02, 0x06, 0x0A, 0x12, 0x1F, 0x02, 0x02),
    "5": (0x1F, 0x10, 0x1E, 0x01, 0x01, 0x11, 0x0E),
    "6": (0x06, 0x08, 0x10, 0x1E, 0x11, 0x11, 0x0E),
    "7": (0x1F, 0x01, 0x02, 0x04, 0x08, 0x08, 0x08),
    "8": (0x0E, 0x11, 0x11, 0x0E, 0x11, 0x11, 0x0E),
    "9": (0x0E, 0x11, 0x11, 0x0F, 0x01, 0x02, 0x0C),
    ":": (0x00, 0x04, 0x04, 0x00, 0x04, 0x04, 0x00),
    ".": (0x00, 0x00, 0x00, 0x00, 0x00, 0x0C, 0x0C),
    "#": (0x0A, 0x0A, 0x1F, 0x0A, 0x1F, 0x0A, 0x0A),
    " ": (0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00),
}


class Digits:
    """Text of digits, ``:``, ``.``, ``#`` and spaces, as lines of pixels.

    Args:
        scale: pixels per dot of a glyph, in both directions.
        black: the background's byte.
        white: the text's.
    """

    def __init__(self, scale: int, black: int, white: int) -> None:
        self._scale = scale
        self._margin = bytes([black]) * scale
        dots = (bytes([black]) * scale, bytes([white]) * scale)
        self._lines = {
            character: [
                b"".join(dots[line >> (ADVANCE - 2 - at) & 1] if at < 5 else dots[0] for at in range(ADVANCE))
                for line in glyph
            ]
            for character, glyph in _GLYPHS.items()
        }

    def width(self, characters: int) -> int:
        """How wide a text is, in pixels."""
        return (characters * ADVANCE + 1) * self._scale

    @property
    def height(self) -> int:
        """How high a text is, with a dot's margin above and below."""
        return (GLYPH_HEIGHT + 2) * self._scale

    def lines(self, text: str) -> Iterator[bytes]:
        """The lines of a text's picture, from top to bottom."""
        empty = self._margin * (len(text) * ADVANCE + 1)
        glyphs = [self._lines[character] for character in text]
        rows = [empty, *(self._margin + b"".join(glyph[row] for glyph in glyphs) for row in range(GLYPH_HEIGHT)), empty]
        for row in rows:
            for _ in range(self._scale):
                yield row


BLACK: Final = 16
WHITE: Final = 235
_GREY: Final = b"\x80"

_CLOCK: Final = "00:00:00.000"
_COUNT: Final = "#0000000"


class Painter:
    """Draws the clocks and the flash into pictures of one size: planar 4:2:0 with 8 bits (``yuv420p``).

    Args:
        width, height: in pixels; even.
    """

    def __init__(self, width: int, height: int) -> None:
        self._width = width
        self._height = height
        self._digits = Digits(max(1, width // 160), BLACK, WHITE)
        self._strip = strip_height(height)
        # Each line of text is grey as a whole, so that it can be read whatever moves below it.
        self._left = 2 * (width // 80)
        self._first = self._strip + self._strip % 2 + 2 * (height // 90)
        self._second = self._first + self._digits.height + self._digits.height % 2

    def paint(self, frame: VideoFrame, number: int, unix_us: int, *, flash: bool) -> None:
        """Draw the time at which a frame is made.

        Args:
            unix_us: microseconds since 1970-01-01 UTC.
            flash: a white square stands beside the clock.
        """
        planes = [(memoryview(plane), plane.line_size) for plane in frame.planes]
        luma, stride = planes[0]
        self._paint_strip(luma, stride, unix_us // 1000)
        clock, count = _time_of_day(unix_us), f"#{number % 10**7:07}"
        _blit(luma, stride, self._left, self._first, self._digits.lines(clock))
        _blit(luma, stride, self._left, self._second, self._digits.lines(count))
        side = self._digits.height
        square = [bytes([WHITE if flash else BLACK]) * side] * side
        _blit(luma, stride, self._left + self._digits.width(len(_CLOCK)), self._first, square)
        for chroma, chroma_stride in planes[1:]:
            self._make_grey(chroma, chroma_stride)

    def _paint_strip(self, luma: memoryview, stride: int, unix_ms: int) -> None:
        row, at = b"", 0
        for cell in draw_clock(unix_ms, self._width, self._height):
            row += bytes([WHITE if cell.white else BLACK]) * (cell.right - cell.left)
            if cell.right == self._width:
                size = (cell.bottom - cell.top) * stride
                luma[at : at + size] = row.ljust(stride, b"\0") * (cell.bottom - cell.top)
                row, at = b"", at + size

    def _make_grey(self, chroma: memoryview, stride: int) -> None:
        strip = (self._strip + 1) // 2 * stride
        chroma[:strip] = _GREY * strip
        height = (self._digits.height + 1) // 2
        clock = (self._digits.width(len(_CLOCK)) + self._digits.height + 1) // 2
        count = (self._digits.width(len(_COUNT)) + 1) // 2
        _blit(chroma, stride, self._left // 2, self._first // 2, [_GREY * clock] * height)
        _blit(chroma, stride, self._left // 2, self._second // 2, [_GREY * count] * height)


def _blit(plane: memoryview, stride: int, left: int, top: int, lines: Iterable[bytes]) -> None:
    for y, line in enumerate(lines, top):
        plane[y * stride + left : y * stride + left + len(line)] = line


def _time_of_day(unix_us: int) -> str:
    time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=unix_us)
    return f"{time:%H:%M:%S}.{time.microsecond // 1000:03}"
