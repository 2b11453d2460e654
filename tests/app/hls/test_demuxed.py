"""One track, cut out of the bytes of all: of fragmented MP4, and of MPEG-TS."""

from __future__ import annotations

import io
import struct
import subprocess
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import av
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.publisher.media.clips import make_clip
from tests.support.media import fragment, init_segment, tables, ts_packet, ts_pictures
from tricklecast.app.hls.demuxed import MAX_TOLD, default_size, track_init, track_media, track_packets
from tricklecast.trickle.media.containers import (
    NULL_PID,
    PACKET_BYTES,
    Continuity,
    ProgramTables,
    Step,
    box,
    boxes,
    full_box,
    ts_packets,
)
from tricklecast.trickle.media.containers import init_segment as head_of

FLAGS = ("frag_keyframe+empty_moov+default_base_moof", "frag_every_frame+empty_moov+default_base_moof")


def film(tmp_path: Path, flags: str = FLAGS[0], suffix: str = "mkv") -> bytes:
    """Pictures and two tracks of sound, in fragments."""
    clip = make_clip(tmp_path / f"clip.{suffix}")
    file = io.BytesIO()
    with ExitStack() as stack:
        source, again = (stack.enter_context(av.open(str(clip), "r")) for _ in range(2))
        target = stack.enter_context(av.open(file, "w", "mp4", options={"movflags": flags}))
        inputs = [(source, source.streams.video[0]), (source, source.streams.audio[0]), (again, again.streams.audio[0])]
        outputs = [target.add_stream_from_template(stream) for _, stream in inputs]
        packets = [packet for packet in source.demux() if packet.dts is not None]
        for packet in packets + [packet for packet in again.demux(inputs[2][1]) if packet.dts is not None]:
            packet.stream = outputs[2 if packet not in packets else packet.stream.index]
            target.mux(packet)
    return file.getvalue()


def packets(data: bytes) -> list[list[tuple[int | None, int | None, bytes]]]:
    """Times and bytes of the packets of each track."""
    with av.open(io.BytesIO(data), "r") as container:
        found: list[list[tuple[int | None, int | None, bytes]]] = [[] for _ in container.streams]
        for packet in container.demux():
            if packet.size:
                found[packet.stream.index].append((packet.pts, packet.dts, bytes(packet)))
    return found


def languages(tmp_path: Path, *names: str) -> bytes:
    """MPEG-TS with pictures, and a track of sound for each language."""
    clip, path = make_clip(tmp_path / "clip.ts"), tmp_path / "languages.ts"
    sounds = [part for _ in names for part in ("-map", "0:a")]
    told = [part for at, name in enumerate(names) for part in (f"-metadata:s:a:{at}", f"language={name}")]
    command = ["ffmpeg", "-v", "error", "-y", "-i", str(clip), "-map", "0:v", *sounds, "-c", "copy", *told, str(path)]
    subprocess.run(command, check=True, timeout=60)
    return path.read_bytes()


@pytest.mark.parametrize("flags", FLAGS)
def test_a_track_has_its_packets_and_no_others(tmp_path: Path, flags: str) -> None:
    """With the same bytes and times, also if the fragments come one by one."""
    data = film(tmp_path, flags)
    init = head_of(data)
    media = data[len(init) :]
    whole = packets(data)
    assert len(whole) == 3
    ends = [item.end for item in boxes(media) if item.kind == b"mdat"]
    for track, wanted in enumerate(whole, 1):
        usual = default_size(init, track)
        cut = track_media(media, track, usual)
        assert cut is not None
        assert packets(track_init(init, track) + cut) == [wanted]
        pieces = [track_media(media[begin:end], track, usual) for begin, end in pairwise([0, *ends])]
        assert b"".join(piece or b"" for piece in pieces) == cut
        assert len(cut) < len(media)
    assert track_media(media, 9, 0) == b""


def moof(head: bytes, *runs: bytes) -> bytes:
    """A fragment of track 1."""
    return box(b"moof", full_box(b"mfhd", 0, 0, bytes(4)), box(b"traf", head, full_box(b"tfdt", 0, 0, bytes(4)), *runs))


def run(flags: int, count: int, *fields: int) -> bytes:
    """A run of samples."""
    return full_box(b"trun", 0, flags, struct.pack(f">I{len(fields)}i", count, *fields))


def test_sizes_come_from_the_run_the_fragment_or_the_init_segment() -> None:
    """A run without a place goes on where the one before has ended."""
    plain = full_box(b"tfhd", 0, 0x020000, struct.pack(">I", 1))
    sized = full_box(b"tfhd", 0, 0x02001A, struct.pack(">IIII", 1, 1, 40, 3))
    for head, usual, first in ((plain, 2, b"abcd"), (sized, None, b"abcdef")):
        size = len(moof(head, run(0x1, 2, 0), run(0x201, 1, 0, 1), run(0x200, 1, 2)))
        runs = run(0x1, 2, size + 8), run(0x201, 1, size + 8 + len(first) + 2, 1), run(0x200, 1, 2)
        cut = track_media(moof(head, *runs) + box(b"mdat", first + b"..ghi"), 1, usual)
        assert cut is not None
        assert [item.body for item in boxes(cut)][-1] == first + b"ghi"
        assert track_media(cut, 1, usual) == cut
    assert track_media(moof(plain, run(0x1, 2, 99)), 1, None) is None, "nobody knows how long its samples are"
    extends = box(b"mvex", full_box(b"trex", 0, 0, struct.pack(">IIIII", 7, 1, 0, 55, 0)))
    assert (default_size(box(b"moov", extends), 7), default_size(box(b"moov", extends), 8)) == (55, 0)


def test_fragments_that_cannot_be_moved() -> None:
    """They name places of a file, or follow the samples of another track."""
    for flags in (0x1, 0x0):
        head = full_box(b"tfhd", 0, flags, struct.pack(">IQ", 1, 0))
        assert track_media(moof(head, run(0x1, 1, 99)), 1, 1) is None
    head = full_box(b"tfhd", 0, 0x020000, struct.pack(">I", 1))
    assert track_media(moof(head, run(0x200, 1, 99)), 1, 1) is None


def test_boxes_in_front_of_a_fragment_stay_with_it() -> None:
    """The time of capture does; an index of bytes does not."""
    prft, sidx = full_box(b"prft", 1, 0, bytes(20)), full_box(b"sidx", 0, 0, bytes(20))
    head = full_box(b"tfhd", 0, 0x020000, struct.pack(">I", 1))
    data = prft + sidx + moof(head, run(0x201, 1, 0, 4)) + box(b"mdat", b"abcd")
    kinds = [item.kind for item in boxes(track_media(data, 1, 0) or b"")]
    assert kinds == [b"prft", b"moof", b"mdat"]
    assert track_media(data, 2, 0) == b""


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=40), st.sampled_from([init_segment(), fragment(0), b"\0\0\0\0trun", run(0x201, 9, 5, 7)])
        ),
        max_size=8,
    ).map(b"".join),
    st.lists(st.integers(0, 4000), max_size=9),
)
def test_no_bytes_make_it_fail(data: bytes, places: list[int]) -> None:
    """What is no fragment is left out."""
    changed = bytearray(data)
    for place in places:
        if changed:
            changed[place % len(changed)] ^= 1 << place % 8
    for track in (0, 1):
        track_media(bytes(changed), track, 1000)
        track_init(bytes(changed), track)
        default_size(bytes(changed), track)
        head = full_box(b"tfhd", 0, 0x020000, struct.pack(">I", track))
        track_media(moof(head, full_box(b"trun", 0, 0x201, bytes(changed))) + bytes(changed), track, 1 << 30)


# MPEG-TS.


def pids(data: bytes) -> set[int]:
    """The streams and tables whose packets have a payload."""
    return {packet.pid for packet in ts_packets(data) if packet.has_payload}


def test_a_track_of_mpeg_ts_has_its_packets_behind_tables_of_its_own(tmp_path: Path) -> None:
    """With the same bytes, times and counters, also if it comes in pieces; and with the clock of its program."""
    data = languages(tmp_path, "fin", "swe")
    whole, size = packets(data), len(data) // PACKET_BYTES // 3 * PACKET_BYTES
    for track, wanted in zip((0x100, 0x101, 0x102), whole, strict=True):
        cut = track_packets(data, data, track)
        assert cut is not None
        assert packets(cut) == [wanted]
        read, continuity, clocks = ProgramTables(), Continuity(), 0
        for packet in ts_packets(cut):
            read.feed(packet)
            assert continuity.feed(packet) is Step.NEXT
            clocks += packet.has_clock and packet.pid == 0x100
        assert (list(read.streams), read.program_of(track)) == ([track], (0x1000, 0x100))
        assert pids(cut) == {0, 0x1000, track}
        assert clocks > 10
        pieces = [track_packets(data, data[at : at + size], track) for at in range(0, len(data), size)]
        heads = 2 * PACKET_BYTES
        media = [
            packet.data for piece in pieces for packet in ts_packets((piece or b"")[heads:]) if packet.pid == track
        ]
        own = [packet.data for packet in ts_packets(cut[heads:]) if packet.pid == track]
        assert [piece for piece in media if piece[3] & 0x10] == [piece for piece in own if piece[3] & 0x10]
    assert track_packets(data, data, 0x103) is None
    assert track_packets(b"", data, 0x101) is None


def test_bytes_that_are_no_packets_are_left_out() -> None:
    """A track of damaged MPEG-TS has whole packets."""
    data = b"".join(ts_pictures(0.0, 3))
    for damaged in (b"xx" + data, data[: 5 * PACKET_BYTES] + b"x" + data[5 * PACKET_BYTES :], data + b"G"):
        assert track_packets(data, damaged, 0x100) == track_packets(data, data, 0x100)


def test_a_track_whose_descriptors_are_long_is_named_without_them() -> None:
    """Its table fits into one packet."""
    long, short = (tables(told=bytes([0x80, size]) + bytes(size)) for size in (MAX_TOLD - 1, MAX_TOLD - 2))
    for head, told in ((long, 0), (short, MAX_TOLD)):
        read = ProgramTables()
        for packet in ts_packets(track_packets(head, head, 0x100) or b""):
            read.feed(packet)
        assert (len(read.descriptors[0x100]), read.damaged) == (told, 0)


@given(st.binary(max_size=3 * PACKET_BYTES), st.integers(0, 6 * PACKET_BYTES), st.sampled_from([0, 0x100, NULL_PID]))
def test_no_bytes_of_mpeg_ts_make_it_fail(noise: bytes, place: int, track: int) -> None:
    """Nor damage anywhere."""
    data = tables() + ts_packet(0x100, noise[:150]) + ts_packet(0x100, b"", key=True)
    changed = data[:place] + noise + data[place + len(noise) :]
    track_packets(changed, changed, track)
    track_packets(data, changed, track)
