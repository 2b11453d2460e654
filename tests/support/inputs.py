"""Media as users have it, made on the spot by ffmpeg: always the same bytes for the same arguments on one machine.

A test that needs an encoder that this ffmpeg lacks is skipped, which is said.
"""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

import pytest

from tricklecast.trickle.media.containers import PACKET_BYTES

H264: Final = "-c:v libx264 -preset ultrafast -tune fastdecode -bf 2 -pix_fmt yuv420p -g 25 -threads 1"
AAC: Final = "-c:a aac -b:a 64k"
UNDAMAGED: Final = 100
"""The first packets stay whole: a demuxer learns the streams from them."""


def picture(seconds: float, size: str = "160x90", rate: int = 25) -> str:
    """ffmpeg's arguments for a picture that moves."""
    return f"-f lavfi -i testsrc2=size={size}:rate={rate}:duration={seconds}"


def tone(seconds: float) -> str:
    """The same for a tone with beeps."""
    return f"-f lavfi -i sine=f=440:b=2:r=48000:d={seconds}"


def made(path: Path, arguments: str, *, inputs: dict[str, bytes] | None = None) -> Path:
    """Write a file with ffmpeg.

    Args:
        path: its ending says the format.
        arguments: ffmpeg's, without the output; no argument has a space.
        inputs: files that the arguments name.
    """
    path.write_bytes(_made(path.suffix, arguments, tuple((inputs or {}).items())))
    return path


@cache
def _made(suffix: str, arguments: str, inputs: tuple[tuple[str, bytes], ...]) -> bytes:
    program = shutil.which("ffmpeg")
    if program is None:
        pytest.skip("there is no ffmpeg to make this input")
    with TemporaryDirectory() as folder:
        for name, data in inputs:
            Path(folder, name).write_bytes(data)
        command = [
            program,
            "-v",
            "error",
            "-y",
            "-nostdin",
            *arguments.split(),
            "-fflags",
            "+bitexact",
            f"made{suffix}",
        ]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
        if "Unknown encoder" in done.stderr:
            pytest.skip(f"this ffmpeg lacks an encoder: {done.stderr.splitlines()[0]}")
        assert done.returncode == 0, done.stderr
        return Path(folder, f"made{suffix}").read_bytes()


def damaged(data: bytes, kind: str, seed: int = 1) -> bytes:
    """MPEG-TS as a bad network or disk leaves it.

    Args:
        data: whole packets.
        kind: ``lost``: 1 % of the packets are missing; ``bytes``: 20 bytes are wrong in 1 % of them; ``cut``: 0.6 % of
            them end after 100 bytes.
        seed: of the dice.
    """
    dice, parts = Random(seed), []
    for number, at in enumerate(range(0, len(data), PACKET_BYTES)):
        packet = bytearray(data[at : at + PACKET_BYTES])
        if number >= UNDAMAGED and dice.random() < (0.006 if kind == "cut" else 0.01):
            if kind == "bytes":
                for _ in range(20):
                    packet[dice.randrange(PACKET_BYTES)] = dice.randrange(256)
            else:
                packet = packet[: 100 if kind == "cut" else 0]
        parts.append(bytes(packet))
    return b"".join(parts)
