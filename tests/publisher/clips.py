"""Small media clips, made on the spot, and the frames that a decoder gets out of media."""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import av
from av.audio.frame import AudioFrame
from av.video.frame import VideoFrame


@dataclass
class Decoded:
    """What a decoder makes of media, per kind of stream: hashes and times of all frames, in order."""

    hashes: dict[str, list[str]] = field(default_factory=dict)
    times: dict[str, list[Fraction]] = field(default_factory=dict)


def decode(source: Path | bytes, format_: str | None = None) -> Decoded:
    """Decode every video and audio stream."""
    decoded = Decoded()
    with av.open(io.BytesIO(source) if isinstance(source, bytes) else str(source), format=format_) as container:
        streams = [*container.streams.video, *container.streams.audio]
        for packet in container.demux(streams):
            assert not packet.is_corrupt
            for frame in packet.decode():
                assert isinstance(frame, VideoFrame | AudioFrame)
                assert frame.pts is not None
                kind = packet.stream.type
                decoded.hashes.setdefault(kind, []).append(frame_hash(frame))
                decoded.times.setdefault(kind, []).append(frame.pts * frame.time_base)
    return decoded


def frame_hash(frame: VideoFrame | AudioFrame) -> str:
    """A hash of a frame's samples, without the padding of its memory."""
    digest = hashlib.sha256()
    if isinstance(frame, AudioFrame):
        size = frame.samples * frame.format.bytes * (1 if frame.format.is_planar else len(frame.layout.channels))
        for plane in frame.planes:
            digest.update(bytes(plane)[:size])
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
    rate: int = 25,
) -> Path:
    """Encode a clip with B-frames, a keyframe per second, and a tone."""
    with av.open(str(path), mode="w") as container:
        if video:
            _add_video(container, video, rate, round(seconds * rate), open_gop=open_gop)
        if audio:
            _add_audio(container, audio, seconds)
        _encode(container, seconds, rate)
    return path
