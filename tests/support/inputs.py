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
from typing import Any, Final

import av
import pytest

from tricklecast.trickle.media.containers import PACKET_BYTES, crc32, ts_packets

H264: Final = "-c:v libx264 -preset ultrafast -tune fastdecode -bf 2 -pix_fmt yuv420p -g 25 -threads 1"
AAC: Final = "-c:a aac -b:a 64k"
UNDAMAGED: Final = 100
"""The first packets stay whole: a demuxer learns the streams from them."""


def picture(seconds: float, size: str = "160x90", rate: int | str = 25) -> str:
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


CUE_PID: Final = 0x1F0
CUE: Final = bytes.fromhex("fc301f00000000000000fff00f05000000017fcffe00a4cb80fe00a4cb80d0215de1")
"""A splice_insert of SCTE 35, with its check sum."""


def with_cues(film: bytes, every: int = 100) -> bytes:
    """MPEG-TS of ffmpeg with a further stream of cues, one after so many packets."""
    cue = (b"\0" + CUE).ljust(184, b"\xff")
    return _with_stream(film, 0x86, b"", b"\x10", cue, every, info=b"\x05\x04CUEI")


def with_pes(film: bytes, kind: int, descriptors: bytes, payload: bytes, every: int = 100) -> bytes:
    """MPEG-TS of ffmpeg with a further stream of this type, which has a PES packet after so many packets.

    Each is shown at the beginning of the film, and has the stream id of private data.
    """
    body = b"\x84\x80\x05" + bytes.fromhex("210007d861") + payload  # 1.4 s
    pes = b"\0\0\1\xbd" + len(body).to_bytes(2) + body
    room = 184 - len(pes)
    stuffing = bytes([room - 1, 0]) + b"\xff" * (room - 2)
    return _with_stream(film, kind, descriptors, b"\x30", stuffing + pes, every)


def _with_stream(
    film: bytes, kind: int, descriptors: bytes, control: bytes, content: bytes, every: int, info: bytes = b""
) -> bytes:
    """A further stream, announced in ffmpeg's PMT, whose packets are all alike but for their counter."""
    parts, packets = [], 0
    for number, packet in enumerate(ts_packets(film)):
        data = packet.data
        if packet.pid == 0x1000:  # ffmpeg's PMT
            body = bytearray(packet.payload[1 : 1 + 3 + int.from_bytes(packet.payload[2:4]) % 4096 - 4])
            body[10:12] = (0xF000 | len(info)).to_bytes(2)
            body[12:12] = info
            body += bytes([kind]) + (0xE000 | CUE_PID).to_bytes(2) + (0xF000 | len(descriptors)).to_bytes(2)
            body += descriptors
            body[1:3] = (0xB000 | len(body) + 1).to_bytes(2)
            data = (
                data[:3] + bytes([data[3] & 0x1F]) + (b"\0" + body + crc32(bytes(body)).to_bytes(4)).ljust(184, b"\xff")
            )
        parts.append(data)
        if number % every == every - 1:
            parts.append(b"\x47\x41\xf0" + bytes([control[0] | packets % 16]) + content)
            packets += 1
    return b"".join(parts)


def with_klv(film: Path, path: Path) -> Path:
    """A film with metadata as drones send it (SMPTE 336), a set of it beside every tenth picture."""
    with av.open(str(film)) as source, av.open(str(path), "w") as target:
        copies = {stream.index: target.add_stream_from_template(stream, opaque=True) for stream in source.streams}
        data = target.add_data_stream("klv")
        pictures = 0
        for packet in source.demux():
            if not packet.size:
                continue
            if packet.stream.type == "video" and pictures % 10 == 0:
                key = bytes.fromhex("060e2b34020b01010e01030101000000")
                klv: av.Packet[Any] = av.Packet(key + b"\4" + pictures.to_bytes(4))
                klv.stream, klv.pts, klv.dts, klv.time_base = data, packet.dts, packet.dts, packet.time_base
                target.mux_one(klv)
            pictures += packet.stream.type == "video"
            packet.stream = copies[packet.stream_index]
            target.mux_one(packet)
    return path
