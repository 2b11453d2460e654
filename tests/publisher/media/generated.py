"""Generated and encoded media for tests: sources made of packets, and what a viewer would see and hear of them."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import av
import numpy as np
from av import Packet
from av.audio.frame import AudioFrame
from av.bitstream import BitStreamFilterContext
from av.stream import Stream
from av.video.frame import VideoFrame

from tricklecast.publisher.media.pace import Clock
from tricklecast.publisher.media.source import MediaSource
from tricklecast.publisher.media.testsrc import BLACK
from tricklecast.trickle.media.clock import read_clock


class Packets:
    """A source of given packets.

    Args:
        streams: they belong to.
        packets: may raise.
    """

    def __init__(self, streams: Sequence[Stream], packets: Iterable[Packet[Stream]]) -> None:
        self.streams = {stream.index: stream for stream in streams}
        self.is_closed = False
        self.strays = 0
        self._packets = packets

    def packets(self) -> Iterator[tuple[int, Packet[Stream]]]:
        """The packets."""
        for packet in self._packets:
            yield packet.stream_index, packet

    def late(self) -> dict[int, str]:
        """None."""
        return {}

    def close(self) -> None:
        """Remember it."""
        self.is_closed = True


class FakeClock(Clock):
    """A clock that only sleeping moves."""

    def __init__(self, unix_us: int = 1_785_000_000_000_000) -> None:
        self.now = 100.0
        self.offset_us = unix_us - 100_000_000
        self.slept: list[float] = []

    def monotonic(self) -> float:
        """Seconds."""
        return self.now

    def unix_us(self) -> int:
        """Microseconds of Unix time."""
        return self.offset_us + round(self.now * 1e6)

    def sleep(self, seconds: float) -> None:
        """Pass the time; a little more than was asked for, as any clock does."""
        self.slept.append(seconds)
        self.now += seconds + 1e-9


def muxed(source: MediaSource, format_: str = "mpegts") -> bytes:
    """All packets of a source in one container, as any muxer takes them."""
    buffer = io.BytesIO()
    options = {"mpegts_copyts": "1", "avoid_negative_ts": "disabled"} if format_ == "mpegts" else {}
    with av.open(buffer, "w", format=format_, container_options=options) as container:
        copies = {track: container.add_stream_from_template(stream) for track, stream in source.streams.items()}
        # MPEG-TS has no place for parameter sets but before the pictures.
        filters = {
            track: BitStreamFilterContext("dump_extra=freq=keyframe", stream)
            for track, stream in source.streams.items()
            if stream.type == "video" and format_ == "mpegts"
        }
        for index, packet in source.packets():
            for part in filters[index].filter(packet) if index in filters else [packet]:
                part.stream = copies[index]
                container.mux(part)
    source.close()
    return buffer.getvalue()


def frames_of(data: bytes, kind: str, format_: str = "mpegts") -> list[Any]:
    """The decoded frames of the first video or audio stream."""
    with av.open(io.BytesIO(data), "r", format=format_) as container:
        return list(container.decode(**{kind: 0}))


def time_of(frame: VideoFrame | AudioFrame | Packet[Stream]) -> Fraction:
    """When it is shown or heard, in seconds."""
    assert frame.pts is not None
    assert frame.time_base is not None
    return frame.pts * frame.time_base


def luma(frame: VideoFrame) -> Callable[[int, int], int]:
    """The brightness of a picture's pixels."""
    pixels, stride = memoryview(frame.planes[0]), frame.planes[0].line_size
    return lambda x, y: pixels[y * stride + x]


def clock_of(frame: VideoFrame) -> int | None:
    """What the picture clock says, in milliseconds of Unix time."""
    return read_clock(luma(frame), frame.width, frame.height)


def flashes(frames: Iterable[VideoFrame]) -> list[Fraction]:
    """When the white square beside the clock is lit up, in seconds."""
    lit = []
    for frame in frames:
        scale = max(1, frame.width // 160)
        # The middle of the square: behind the margin and twelve digits, below the strip.
        x = 2 * (frame.width // 80) + (12 * 6 + 1) * scale + 4 * scale
        y = frame.height * 2 // 9 + 2 * (frame.height // 90) + 4 * scale
        if luma(frame)(x, y) > 128 > BLACK:
            lit.append(time_of(frame))
    return lit


def beeps(frames: Iterable[AudioFrame], rate: int = 48_000, pause_s: float = 0.5) -> list[Fraction]:
    """When the tone becomes loud, in seconds."""
    begun: list[Fraction] = []
    for frame in frames:
        samples = np.frombuffer(bytes(frame.planes[0])[: frame.samples * 4], "f4")
        for at in np.flatnonzero(abs(samples) > 0.2):
            time = time_of(frame) + Fraction(int(at), rate)
            if not begun or time - begun[-1] > pause_s:
                begun.append(time)
    return begun
