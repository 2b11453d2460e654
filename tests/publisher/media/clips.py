"""Small media clips, made on the spot, and the frames that a decoder gets out of media."""

from __future__ import annotations

import hashlib
import io
import tempfile
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Final, cast

import av
import numpy as np
from av.audio.frame import AudioFrame
from av.audio.stream import AudioStream
from av.codec.context import Flags2
from av.container import OutputContainer
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

SIDE: Final = 64
FRAME_RATE: Final = 25
AUDIO_RATE: Final = 48_000


@dataclass
class Decoded:
    """What a decoder makes of media, per kind of stream: hashes and times of all frames, in order."""

    hashes: dict[str, list[str]] = field(default_factory=dict)
    times: dict[str, list[Fraction]] = field(default_factory=dict)


def decode(source: Path | bytes, format_: str | None = None) -> Decoded:
    """Decode every video and audio stream."""
    decoded = Decoded()
    with av.open(io.BytesIO(source) if isinstance(source, bytes) else str(source), "r", format_) as container:
        streams = [*container.streams.video, *container.streams.audio]
        for stream in streams:
            stream.codec_context.flags2 |= Flags2.skip_manual  # nothing is trimmed
        for packet in container.demux(streams):
            assert not packet.is_corrupt
            for frame in packet.decode():
                assert isinstance(frame, VideoFrame | AudioFrame)
                assert frame.pts is not None
                assert frame.time_base is not None
                kind = packet.stream.type
                decoded.hashes.setdefault(kind, []).append(frame_hash(frame))
                decoded.times.setdefault(kind, []).append(Fraction(frame.pts * frame.time_base))
    return decoded


def frame_hash(frame: VideoFrame | AudioFrame) -> str:
    """A hash of a frame's samples, without the padding of its memory."""
    digest = hashlib.sha256()
    if isinstance(frame, AudioFrame):
        size = frame.samples * frame.format.bytes * (1 if frame.format.is_planar else len(frame.layout.channels))
        for samples in frame.planes:
            digest.update(bytes(samples)[:size])
        return digest.hexdigest()
    for plane in frame.planes:
        view = memoryview(plane)
        for row in range(plane.height):
            digest.update(view[row * plane.line_size : row * plane.line_size + plane.width])
    return digest.hexdigest()


def make_clip(
    path: Path,
    *,
    seconds: float = 3.0,
    video: str | None = "libx264",
    audio: str | None = "aac",
    open_gop: bool = False,
    side: int = SIDE,
) -> Path:
    """A clip with two B-frames between others, a keyframe per second, and a tone; each kind is encoded once."""
    path.write_bytes(_clip(path.suffix, seconds, video, audio, open_gop, side))
    return path


@cache
def _clip(suffix: str, seconds: float, video: str | None, audio: str | None, open_gop: bool, side: int) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"clip{suffix}"
        _encode(path, seconds, video, audio, open_gop, side)
        return path.read_bytes()


def _encode(path: Path, seconds: float, video: str | None, audio: str | None, open_gop: bool, side: int) -> None:
    with av.open(str(path), mode="w") as container:
        picture = _video_stream(container, video, open_gop, side) if video else None
        sound = _audio_stream(container, audio) if audio else None
        for number in range(round(seconds * FRAME_RATE)):
            if picture is not None:
                container.mux(picture.encode(_picture(number, side)))
            if sound is not None:
                container.mux(sound.encode(_tone(number, sound.codec_context.format.name)))
        for stream in (picture, sound):
            if stream is not None:
                container.mux(stream.encode(None))


def _video_stream(container: OutputContainer, codec: str, open_gop: bool, side: int) -> VideoStream:
    gop = f"keyint={FRAME_RATE}:min-keyint={FRAME_RATE}:scenecut=0:bframes=2:b-adapt=0:open-gop={int(open_gop)}"
    quiet = ":log-level=none" if codec == "libx265" else ""
    options = (
        {f"{codec.removeprefix('lib')}-params": gop + quiet} if codec.startswith("libx") else {"g": "25", "bf": "2"}
    )
    stream = cast(VideoStream, container.add_stream(codec, rate=FRAME_RATE, options=options))
    stream.width = stream.height = side
    stream.pix_fmt = "yuv420p"
    return stream


def _audio_stream(container: OutputContainer, codec: str) -> AudioStream:
    options = {"aac_coder": "fast"} if codec == "aac" else {}  # a tenth of the time
    return cast(AudioStream, container.add_stream(codec, rate=AUDIO_RATE, options=options))


def _picture(number: int, side: int) -> VideoFrame:
    """A gradient that moves, so that every frame differs from every other."""
    frame = VideoFrame(side, side, "yuv420p")
    for plane in frame.planes:
        begin = number * 3 % 256
        plane.update((bytes(range(256)) * (plane.buffer_size // 256 + 2))[begin : begin + plane.buffer_size])
    frame.pts = number
    frame.time_base = Fraction(1, FRAME_RATE)
    return frame


def _tone(number: int, format_: str) -> AudioFrame:
    """A frame's time of a rising tone, mono."""
    samples = AUDIO_RATE // FRAME_RATE
    frame = AudioFrame(format=format_, layout="mono", samples=samples)
    wave = np.sin((number * samples + np.arange(samples)) * (0.02 + number * 0.0005)) * 0.5
    data = wave.astype("f4").tobytes() if format_.startswith("flt") else (wave * 32767).astype("i2").tobytes()
    frame.planes[0].update(data.ljust(frame.planes[0].buffer_size, b"\0"))
    frame.sample_rate = AUDIO_RATE
    frame.pts = number * samples
    frame.time_base = Fraction(1, AUDIO_RATE)
    return frame
