"""The inputs of the media table: each is a few commands of ffmpeg, and what is special about publishing it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from tests.support.inputs import with_cues, with_klv
from tricklecast.trickle.media.containers import PACKET_BYTES

V: Final = "-f lavfi -i testsrc2=size=320x180:rate=25:duration={s}"
A: Final = "-f lavfi -i sine=f=440:b=2:r=48000:d={s}"
X: Final = "-c:v libx264 -preset veryfast -pix_fmt yuv420p -g 50 -b:v 500k"
SECONDS: Final = 14
"""How long the inputs are: a player of a live channel begins some segments late, and then has something to play."""

UNDAMAGED: Final = 200
"""The first packets stay whole: a demuxer learns the streams from them."""


@dataclass(frozen=True, slots=True)
class Case:
    """An input, and how it is published.

    Attributes:
        name: of the channel. title: what the table calls it.
        file: name of the input. commands: ffmpeg's arguments that make it, one command a line.
        change: makes the input of what the commands made; ``None``: it is that.
        publish: further options of ``publish``. serve: further options of ``serve``.
        piped: it reaches ``publish`` on standard input. even: its pictures come at a constant rate.
        realtime: it is published at the speed at which it plays.
    """

    name: str
    title: str
    file: str
    commands: str
    change: Callable[[Path, Path], None] | None = None
    publish: tuple[str, ...] = ()
    serve: tuple[str, ...] = ()
    piped: bool = False
    even: bool = True
    realtime: bool = True

    def make(self, folder: Path) -> Path:
        """Make the input in a folder, unless it is there.

        Raises:
            CalledProcessError: ffmpeg failed.
        """
        path = folder / self.file
        if path.exists():
            return path
        for line in self.commands.strip().splitlines():
            arguments = line.strip().format(V=V.format(s=SECONDS), A=A.format(s=SECONDS), X=X)
            command = ["ffmpeg", "-v", "error", "-y", "-nostdin", *arguments.split()]
            subprocess.run(command, cwd=folder, check=True, timeout=300)
        if self.change is not None:
            self.change(folder, path)
        return path


def _base(change: Callable[[bytes], Iterator[bytes]]) -> Callable[[Path, Path], None]:
    def write(folder: Path, path: Path) -> None:
        path.write_bytes(b"".join(change((folder / "base.ts").read_bytes())))

    return write


def _packets(data: bytes) -> Iterator[tuple[bool, bytes]]:
    for number, at in enumerate(range(0, len(data), PACKET_BYTES)):
        yield number > UNDAMAGED, data[at : at + PACKET_BYTES]


def _lost(data: bytes) -> Iterator[bytes]:
    dice = Random(1)
    return (packet for exposed, packet in _packets(data) if not exposed or dice.random() >= 0.01)


def _random_bytes(data: bytes) -> Iterator[bytes]:
    dice = Random(1)
    for exposed, packet in _packets(data):
        changed = bytearray(packet)
        if exposed and dice.random() < 0.01:
            for _ in range(20):
                changed[dice.randrange(PACKET_BYTES)] = dice.randrange(256)
        yield bytes(changed)


def _cut(data: bytes) -> Iterator[bytes]:
    dice = Random(1)
    return (packet[:100] if exposed and dice.random() < 0.003 else packet for exposed, packet in _packets(data))


def _metadata(folder: Path, path: Path) -> None:
    with_klv(folder / "base.ts", folder / "klv.ts")
    path.write_bytes(with_cues((folder / "klv.ts").read_bytes()))


def _joined(*names: str) -> Callable[[Path, Path], None]:
    def write(folder: Path, path: Path) -> None:
        path.write_bytes(b"".join((folder / name).read_bytes() for name in names))

    return write


BASE: Final = "{V} {A} {X} -bf 3 -c:a aac base.ts"
MP4: Final = "{V} {A} {X} -c:a aac base.mp4"
LACED: Final = (
    "{V} {A} -vf scale=720:576,setsar=16/11,tinterlace=interleave_top -flags +ildct+ilme -c:v mpeg2video"
    " -b:v 3M -g 12 -c:a mp2 laced.ts"
)
ROTATED: Final = MP4 + "\n-i base.mp4 -c copy -metadata:s:v:0 rotate=90 rotated.mp4"
SILENT: Final = "-i base.ts -c:v copy -c:a"
CASES: Final = (
    Case("plain-ts", "H.264 with B-pictures and AAC", "base.ts", BASE),
    Case("plain-mp4", "the same as fragmented MP4", "base.mp4", MP4, publish=("--container", "fmp4")),
    Case("lost", "MPEG-TS, 1 % of the packets lost", "lost.ts", BASE, _base(_lost)),
    Case("bytes", "MPEG-TS, 20 bytes wrong in 1 % of the packets", "bytes.ts", BASE, _base(_random_bytes)),
    Case("cut", "MPEG-TS, 0.3 % of the packets cut to 100 bytes", "cut.ts", BASE, _base(_cut)),
    Case("lost-transcoded", "the first of these, `--transcode`", "lost.ts", BASE, _base(_lost), ("--transcode",)),
    Case("av1", "AV1 and AAC", "av1.mp4", "{V} {A} -c:v libsvtav1 -preset 12 -g 50 -pix_fmt yuv420p -c:a aac av1.mp4"),
    Case(
        "vp9",
        "VP9 and Opus (WebM)",
        "vp9.webm",
        "{V} {A} -c:v libvpx-vp9 -deadline realtime -cpu-used 8 -g 50 -b:v 500k -c:a libopus vp9.webm",
    ),
    Case("rotated-mp4", "turned by 90°, in fragmented MP4", "rotated.mp4", ROTATED, publish=("--container", "fmp4")),
    Case("rotated-ts", "turned by 90°, in MPEG-TS", "rotated.mp4", ROTATED),
    Case("rotated-transcoded", "turned by 90°, `--transcode`", "rotated.mp4", ROTATED, publish=("--transcode",)),
    Case(
        "vfr",
        "pictures at a varying rate",
        "vfr.mp4",
        "{V} {A} -vf select='if(between(mod(n,37),5,11),0,gt(random(3),0.3))' -fps_mode vfr {X} -c:a aac vfr.mp4",
        even=False,
    ),
    Case("mp3", "H.264 and MP3 in MPEG-TS", "mp3.ts", f"{BASE}\n{SILENT} libmp3lame -ac 2 mp3.ts"),
    Case("mp2", "H.264 and MP2 in MPEG-TS", "mp2.ts", f"{BASE}\n{SILENT} mp2 -ac 2 mp2.ts"),
    Case(
        "sound-mp4",
        "sound alone, fragmented MP4",
        "audio.m4a",
        "{A} -c:a aac audio.m4a",
        publish=("--container", "fmp4"),
    ),
    Case("sound-ts", "sound alone, MPEG-TS", "audio.m4a", "{A} -c:a aac audio.m4a"),
    Case("laced", "interlaced MPEG-2", "laced.ts", LACED),
    Case("laced-transcoded", "interlaced MPEG-2, `--transcode`", "laced.ts", LACED, publish=("--transcode",)),
    Case(
        "picture-stops",
        "the picture stops after 2 s, the sound goes on",
        "stops.ts",
        f"{V.format(s=2)} {A.format(s=20)} {{X}} -c:a aac stops.ts",
    ),
    Case(
        "no-key",
        "no key picture (intra refresh), segments of 300 kB at most",
        "refresh.ts",
        "{V} {A} -c:v libx264 -preset veryfast -pix_fmt yuv420p -b:v 500k"
        " -x264-params intra-refresh=1:keyint=infinite -c:a aac refresh.ts",
        serve=("--max-segment-bytes", "300kB"),
    ),
    Case("metadata", "SCTE-35 and KLV beside the picture", "metadata.ts", BASE, _metadata),
    Case("moov-at-end", "MP4 with its index at the end, on a pipe", "base.mp4", MP4, piped=True),
    Case(
        "codec-changes",
        "H.264 becomes HEVC in the middle",
        "changes.ts",
        f"{V.format(s=8)} {A.format(s=8)} {{X}} -c:a aac first.ts\n"
        f"{V.format(s=8)} {A.format(s=8)} -c:v libx265 -preset ultrafast -x265-params log-level=none -g 50"
        " -c:a aac second.ts",
        _joined("first.ts", "second.ts"),
    ),
    Case("raw", "raw H.264 with B-pictures", "raw.h264", "{V} {X} -bf 3 raw.h264"),
    Case(
        "longer",
        "segments of 1 s, then of 6 s",
        "longer.ts",
        "{V} {A} -c:v libx264 -preset veryfast -pix_fmt yuv420p -g 150 -keyint_min 1 -sc_threshold 0 -b:v 500k"
        " -force_key_frames 0,1,2,3,4,5,6,12 -c:a aac longer.ts",
    ),
    Case("at-once", "`--no-realtime`", "base.ts", BASE, publish=("--no-realtime",), realtime=False),
    Case(
        "languages-mp4",
        "three languages, fragmented MP4",
        "languages.mkv",
        "{V} {A} {A} {A} -map 0 -map 1 -map 2 -map 3 {X} -c:a aac -metadata:s:a:0 language=fin"
        " -metadata:s:a:1 language=swe -metadata:s:a:2 language=eng languages.mkv",
        publish=("--container", "fmp4"),
    ),
    Case(
        "languages-ts",
        "three languages, MPEG-TS",
        "languages.mkv",
        "{V} {A} {A} {A} -map 0 -map 1 -map 2 -map 3 {X} -c:a aac -metadata:s:a:0 language=fin"
        " -metadata:s:a:1 language=swe -metadata:s:a:2 language=eng languages.mkv",
    ),
)
