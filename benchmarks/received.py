"""What arrives of a test source's channel: decoded as it comes, with all the clocks that it carries."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import IO, Final

from tricklecast.trickle.media.clock import read_clock, read_temi
from tricklecast.trickle.media.containers import PACKET_BYTES

RATE: Final = 25
"""Pictures per second, the test source's default."""

CLOCK_HZ: Final = 90_000
STEPS: Final = {"video": CLOCK_HZ // RATE, "audio": CLOCK_HZ * 1024 // 48_000}
"""From packet to packet, in ticks: a picture, and a frame of AAC."""

_NO_PAYLOAD: Final = 0x20
_CONTENT: Final = 0x30


@dataclass
class Received:
    """What came.

    Attributes:
        packets: of each kind of stream.
        jumps: of those, how many are not one step later than the one before.
        corrupt: packets that the demuxer calls so.
        pictures: decoded ones.
        keyframes: the media time of each, and what its clock says, in milliseconds; ``None``: unreadable.
        producer: each segment's producer time, and how late it was read, in milliseconds.
    """

    packets: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STEPS, 0))
    jumps: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STEPS, 0))
    corrupt: int = 0
    pictures: int = 0
    keyframes: list[tuple[float, int | None]] = field(default_factory=list)
    producer: list[tuple[float, float]] = field(default_factory=list)


def receive(pipe: IO[bytes]) -> Received:
    """Decode all that comes out of a pipe, until its end."""
    import av
    from av.error import FFmpegError
    from av.video.frame import VideoFrame

    received = Received()
    last: dict[str, int] = {}
    try:
        container = av.open(_Tap(pipe, received), "r", format="mpegts")
    except FFmpegError:  # nothing came
        return received
    with container:
        for packet in container.demux():
            if packet.dts is not None and packet.size:
                kind = packet.stream.type
                received.packets[kind] += 1
                received.corrupt += packet.is_corrupt
                received.jumps[kind] += packet.dts - last.get(kind, packet.dts - STEPS[kind]) != STEPS[kind]
                last[kind] = packet.dts
            for frame in packet.decode():
                if isinstance(frame, VideoFrame):
                    received.pictures += 1
                    if frame.key_frame:
                        assert frame.pts is not None
                        assert frame.time_base is not None
                        received.keyframes.append((float(frame.pts * frame.time_base) * 1000, _clock_ms(frame)))
    return received


def _clock_ms(frame: object) -> int | None:
    from av.video.frame import VideoFrame

    assert isinstance(frame, VideoFrame)
    pixels, stride = memoryview(frame.planes[0]), frame.planes[0].line_size
    return read_clock(lambda x, y: pixels[y * stride + x], frame.width, frame.height)


class _Tap:
    """Reads a pipe for a demuxer, and notes the producer times that pass."""

    def __init__(self, pipe: IO[bytes], received: Received) -> None:
        self._pipe = pipe
        self._received = received
        self._held = b""

    def read(self, size: int) -> bytes:
        """What is there; nothing at the end."""
        data = os.read(self._pipe.fileno(), size)
        now_ms = time.time_ns() / 1e6
        packets = self._held + data
        whole = len(packets) // PACKET_BYTES * PACKET_BYTES
        for at in range(0, whole, PACKET_BYTES):
            if packets[at + 3] & _CONTENT == _NO_PAYLOAD:
                unix_us = read_temi(packets[at : at + PACKET_BYTES])
                if unix_us is not None:
                    self._received.producer.append((unix_us / 1000, now_ms - unix_us / 1000))
        self._held = packets[whole:]
        return data
