"""The parsers: packets, tables, boxes and start codes made by hand; and any bytes at all."""

from __future__ import annotations

import struct
import tracemalloc
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.publisher.media.clips import make_clip
from tests.subscriber.check.segments import cut
from tricklecast.subscriber.check.audio_frames import FrameCounter, counter_for
from tricklecast.subscriber.check.content import HEAD_BYTES, Channel, sniff
from tricklecast.subscriber.check.fmp4 import Fmp4Reader, Init
from tricklecast.subscriber.check.media import MAX_STEPS, Container, Fault, Kind, Media, Opening, TrackNotes
from tricklecast.subscriber.check.mpegts import MpegtsReader, Multiplex
from tricklecast.subscriber.check.openings import opening
from tricklecast.subscriber.check.psi import Sections, crc32, is_intact, programs, streams


def packet(pid: int, counter: int, payload: bytes, *, starts: bool = False, adaptation: bytes | None = None) -> bytes:
    """A transport packet; what is left is stuffing in the adaptation field."""
    room = 184 - len(payload)
    field = b""
    if room or adaptation is not None:
        body = (adaptation if adaptation is not None else b"\0").ljust(room - 1, b"\xff") if room > 1 else b""
        field = bytes([len(body)]) + body
    flags = (0x20 if field else 0) | (0x10 if payload else 0) | counter & 0xF
    return bytes([0x47, (0x40 if starts else 0) | pid >> 8, pid & 0xFF, flags]) + field + payload


def section(table: int, body: bytes) -> bytes:
    """A section of a program table."""
    head = bytes([table]) + struct.pack(">H", 0xB000 | len(body) + 9) + b"\0\1\xc1\0\0" + body
    return head + struct.pack(">I", crc32(head))


PAT = section(0, b"\0\1\xe1\0")
PMT = section(2, b"\xe1\1\xf0\0" + b"\x1b\xe1\1\xf0\0" + b"\x0f\xe1\2\xf0\0")
TABLES = packet(0, 0, b"\0" + PAT, starts=True) + packet(0x100, 0, b"\0" + PMT, starts=True)


def time(ticks: int, marker: int = 0x21) -> bytes:
    """A time of a PES packet."""
    return bytes(
        [
            marker | ticks >> 29 & 0xE,
            ticks >> 22 & 0xFF,
            1 | ticks >> 14 & 0xFE,
            ticks >> 7 & 0xFF,
            1 | ticks << 1 & 0xFE,
        ]
    )


def pes(pts: int, body: bytes = b"", dts: int | None = None) -> bytes:
    """A PES packet."""
    times = time(pts) if dts is None else time(pts, 0x31) + time(dts, 0x11)
    return b"\0\0\1\xe0\0\0\x80" + bytes([0x80 if dts is None else 0xC0, len(times)]) + times + body


def read(*segments: bytes, step: int = 188, follows: bool = True) -> list[Media]:
    """What segments of one channel hold, fed in pieces of ``step`` bytes."""
    channel = Channel()
    found = []
    for data in segments:
        content = channel.segment(follows=follows)
        for at in range(0, len(data), step):
            content.feed(data[at : at + step])
        found.append(content.finish())
    return found


def frames(*times: int, first: int = 0) -> bytes:
    """A packet per frame of video, with its decoding time."""
    return b"".join(packet(0x101, first + at, pes(dts + 100, dts=dts), starts=True) for at, dts in enumerate(times))


def test_the_times_of_a_track_are_read() -> None:
    """First and last, the distances in between, and both kinds of time."""
    (media,) = read(TABLES + frames(1000, 4600, 8200))
    video = media.tracks[0]
    assert (media.container, media.tables, media.faults) == (Container.MPEGTS, True, {})
    assert (video.name, video.kind, video.codec, video.hz) == ("video 0x101", Kind.VIDEO, "h264", 90_000)
    assert (video.first_dts, video.last_dts, video.first_pts, video.samples) == (1000, 8200, 1100, 3)
    assert video.steps == {3600: 2}


@pytest.mark.parametrize("step", [1, 7, 187, 188, 1000, 100_000])
def test_it_does_not_matter_how_bytes_arrive(tmp_path: Path, step: int) -> None:
    """One at a time, or all at once, in both containers."""
    clip = make_clip(tmp_path / "clip.mp4", seconds=0.5)
    for format_ in ("mpegts", "mp4"):
        segments = cut(clip, format_=format_)
        assert read(*segments, step=step) == read(*segments, step=1 << 20)


def test_a_packet_may_come_twice() -> None:
    """Once the same counter is a repetition, whose bytes count once; twice it is a loss."""
    frame = frames(1000)
    (media,) = read(TABLES + frame + frame + frames(4600, first=1))
    assert media.faults == {}
    assert media.tracks[0].samples == 2
    (media,) = read(TABLES + frame + frame + frame)
    assert media.faults == {Fault.LOST_INSIDE: 1}


def test_another_packet_with_the_same_counter_is_no_repetition() -> None:
    """Fifteen packets are lost, or thirty-one: what comes then has the last counter, but other bytes."""
    (media,) = read(TABLES + frames(1000) + frames(4600))
    assert media.faults == {Fault.LOST_INSIDE: 1}
    assert media.tracks[0].samples == 2


def test_packets_without_payload_do_not_count() -> None:
    """A clock or a producer time between two frames leaves the counter as it is."""
    clock = packet(0x101, 0, b"", adaptation=b"\0")
    (media,) = read(TABLES + frames(1000) + clock + frames(4600, first=1))
    assert media.faults == {}


def test_a_counter_may_jump_where_it_says_so() -> None:
    """The discontinuity indicator makes any counter right."""
    jump = packet(0x101, 9, pes(8200, dts=8200), starts=True, adaptation=b"\x80")
    (media,) = read(TABLES + frames(1000) + jump)
    assert media.faults == {}


def test_counters_go_on_over_segments_unless_something_is_missing() -> None:
    """A new multiplex is not expected to go on."""
    parts = (TABLES + frames(1000), TABLES + frames(4600))
    assert read(*parts)[1].faults == {Fault.LOST_AT_SEAM: 3}
    assert read(*parts, follows=False)[1].faults == {}


def test_null_packets_are_nothing() -> None:
    """Stuffing has no counter and no meaning."""
    (media,) = read(TABLES + packet(0x1FFF, 5, b"\xff" * 184) + frames(1000) + packet(0x1FFF, 5, b"\xff" * 184))
    assert media.faults == {}


def test_tables_have_to_come_first() -> None:
    """Before the picture; sound may begin a little earlier, and tables of the segment before do not count."""
    sound = packet(0x102, 0, pes(900), starts=True)
    assert read(sound + TABLES + frames(1000))[0].tables
    assert not read(frames(1000) + TABLES + frames(4600, first=1))[0].tables
    with_tables, without = read(TABLES + frames(1000), frames(4600, first=1) + packet(0x1FFF, 0, bytes(184)) * 4)
    assert (with_tables.tables, without.tables) == (True, False)
    assert without.tracks[0].first_dts == 4600


def test_a_segment_may_begin_in_the_middle_of_a_frame() -> None:
    """Which is told; and its bytes are not taken for a picture."""
    (media,) = read(TABLES + packet(0x101, 0, b"\0\0\1\x65" + bytes(180)) + frames(1000, first=1))
    assert media.tracks[0].cut_in
    assert media.tracks[0].opening == Opening()


def test_encrypted_packets_are_not_looked_into() -> None:
    """They are counted."""
    locked = bytearray(frames(1000))
    locked[3] |= 0x80
    (media,) = read(TABLES + bytes(locked) + packet(0x1FFF, 0, bytes(184)))
    assert media.faults == {Fault.SCRAMBLED: 1}


def test_garbage_between_packets_is_counted_once_per_place() -> None:
    """Packets behind it are found again."""
    (media,) = read(b"\1" * 100 + TABLES + frames(0) + b"\2" * 300 + frames(1000, 4600, 8200, first=1) + b"\3" * 10)
    assert media.faults == {Fault.SYNC_LOST: 3}
    assert media.tracks[0].samples == 4


def test_a_bad_adaptation_field_is_counted() -> None:
    """It is longer than its packet."""
    bad = bytes([0x47, 1, 1, 0x30, 200]) + bytes(183)
    (media,) = read(TABLES + bad + frames(1000, 4600))
    assert media.faults == {Fault.BAD_PACKET: 1}


def test_sections_over_several_packets() -> None:
    """A long table, and a second one in the same packet, are put together; too long a one is left."""
    long = section(2, b"\xe1\1\xf0\0" + b"".join(b"\x1b\xe1" + bytes([at]) + b"\xf0\0" for at in range(60)))
    sections = Sections()
    assert list(sections.feed(b"\0" + long[:183], True)) == []
    assert list(sections.feed(long[183:] + b"\xff" * 20, False)) == [long]
    assert list(sections.feed(b"\0" + PAT + PMT + b"\xff", True)) == [PAT, PMT]
    assert list(sections.feed(PAT, False)) == []
    assert list(sections.feed(b"\0\2\xbf\xff" + bytes(100), True)) == []
    assert list(sections.feed(bytes(180), False)) == []
    assert list(sections.feed(b"\3" + bytes(3) + PAT, True)) == [PAT]


def test_tables_are_read() -> None:
    """Programs without the network's, streams with what their descriptors say."""
    assert is_intact(PAT)
    assert not is_intact(PAT[:-1] + b"\0")
    assert programs(section(0, b"\0\0\xe0\x10\0\1\xe1\0\0\2\xe2\0")) == [0x100, 0x200]
    assert programs(PMT) == []
    assert streams(PAT) == {}
    body = b"\xe1\1\xf0\2\x0a\0" + b"\6\xe1\1\xf0\6\5\4Opus" + b"\6\xe1\2\xf0\3\x6a\1\0" + b"\6\xe1\3\xf0\2\x56\0"
    assert streams(section(2, body)) == {
        0x101: (Kind.AUDIO, "opus"),
        0x102: (Kind.AUDIO, "ac3"),
        0x103: (Kind.DATA, "data"),
    }


@pytest.mark.parametrize(
    ("codec", "data", "key", "parameters"),
    [
        ("h264", "00000109f0 00000167 00000168 00000165 88", True, True),
        ("h264", "00000168 00000165 88", True, False),
        ("h264", "00000167 00000168 0000010606018480 00000141 9a", True, True),
        ("h264", "00000167 00000168 000001 06050180 00000141 9a", False, True),
        ("h264", "00000167 00000168 00000141 88", True, True),
        ("h264", "00000141 9a", False, False),
        ("h264", "00000141 00", None, False),
        ("h264", "00000109f0", None, None),
        ("h264", "0000010605ff", None, None),
        ("hevc", "0000014001 0000014201 0000014401 0000012601", True, True),
        ("hevc", "0000014201 0000014401 0000012a01", True, False),
        ("hevc", "0000010201", False, False),
        ("hevc", "0000014601", None, None),
        ("vvc", "0000010079 0000010081 0000010039", True, True),
        ("vvc", "0000010001", False, False),
        ("vvc", "00000100", None, None),
        ("mpeg2video", "000001b3 00000100000a", True, True),
        ("mpeg2video", "000001000012", False, False),
        ("mpeg2video", "000001b3", None, True),
        ("mpeg4", "00000120 000001b610", True, True),
        ("mpeg4", "000001b650", False, False),
        ("mpeg4", "00000120", None, True),
        ("vc1", "000001", None, None),
        ("h264", "", None, None),
    ],
)
def test_openings(codec: str, data: str, key: bool | None, parameters: bool | None) -> None:
    """Key pictures of each codec, with and without what a decoder needs before them."""
    assert opening(codec, bytes.fromhex(data)) == Opening(key, parameters)


def counted(codec: str, *pieces: bytes) -> FrameCounter:
    """A counter after these bytes."""
    counter = counter_for(codec)
    assert counter is not None
    for piece in pieces:
        counter.feed(piece)
    counter.end_of_packet()
    return counter


def test_frames_of_sound_are_measured() -> None:
    """AAC, MPEG audio of both versions and Opus, also where a frame spans pieces; other codecs are not."""
    aac = bytes([0xFF, 0xF1, 0x4C, 0x80, 200 >> 3, (200 & 7) << 5 | 0x1F, 0xFC]) + bytes(193)
    assert counted("aac", aac * 3).seconds == Fraction(3 * 1024, 48_000)
    assert counted("aac", aac[:5], aac[5:] + aac).seconds == Fraction(2 * 1024, 48_000)
    layer2 = bytes([0xFF, 0xFD, 0x84, 0]) + bytes(380)
    assert counted("mpegaudio", layer2 * 2).seconds == Fraction(2 * 1152, 48_000)
    layer3 = bytes([0xFF, 0xF3, 0x40, 0]) + bytes(104)
    assert counted("mpegaudio", layer3).seconds == Fraction(576, 22_050)
    for toc, length in ((0xFC, Fraction(20)), (0x08, Fraction(20)), (0xE1, Fraction(5)), (0x60, Fraction(10))):
        opus = bytes([0x7F, 0xE0, 40, toc]) + bytes(39)
        assert counted("opus", opus * 2).seconds == 2 * length / 1000
    trimmed = bytes([0x7F, 0xF8, 0xFF, 5, 0, 0, 0, 0, 0xFF, 3]) + bytes(258)
    assert counted("opus", trimmed).seconds == Fraction(60, 1000)
    assert counter_for("ac3") is None


@pytest.mark.parametrize("codec", ["aac", "mpegaudio", "opus"])
def test_sound_that_makes_no_sense_is_not_measured(codec: str) -> None:
    """Rather nothing than a wrong length."""
    counter = counted(codec, bytes(100))
    assert counter.lost
    counter.feed(bytes(10))
    assert counter.seconds == 0


def box(kind: bytes, *parts: bytes) -> bytes:
    """An MP4 box."""
    body = b"".join(parts)
    return struct.pack(">I4s", 8 + len(body), kind) + body


def moov(*, edit: bytes = b"", version: int = 0) -> bytes:
    """An init segment with one track of video."""
    pad = bytes(8 if version == 0 else 16)
    full = bytes([version, 0, 0, 0])
    stsd = box(b"stsd", bytes(8), box(b"avc1", bytes(20)))
    minf = box(b"minf", box(b"stbl", stsd))
    mdia = box(b"mdia", box(b"mdhd", full, pad, struct.pack(">I", 1000)), box(b"hdlr", bytes(8), b"vide"), minf)
    trak = box(b"trak", box(b"tkhd", full, pad, struct.pack(">I", 7)), edit, mdia)
    trex = box(b"trex", struct.pack(">IIIIII", 0, 7, 1, 40, 0, 0x10000))
    return box(b"moov", box(b"mvhd", full, pad, struct.pack(">I", 600)), trak, box(b"mvex", trex))


def moof(time: int, trun: bytes, *, tfhd: bytes = struct.pack(">II", 0, 7), version: int = 1) -> bytes:
    """A fragment."""
    tfdt = bytes([version, 0, 0, 0]) + time.to_bytes(8 if version else 4)
    return box(
        b"moof", box(b"mfhd", bytes(8)), box(b"traf", box(b"tfhd", tfhd), box(b"tfdt", tfdt), box(b"trun", trun))
    )


KEY_RUN = struct.pack(">III", 0x4, 3, 0)
"""Three samples of the default duration, of which the first is a sync sample."""


def test_fragments_are_read() -> None:
    """Their times, the defaults of the track, and whether the first sample is a key."""
    mdat = box(b"mdat", bytes(5000))
    (media,) = read(box(b"ftyp", b"iso6") + moov() + moof(5000, KEY_RUN) + mdat + moof(5120, KEY_RUN, version=0) + mdat)
    track = media.tracks[0]
    assert (media.container, media.tables, media.faults) == (Container.FMP4, True, {})
    assert (track.name, track.codec, track.hz) == ("video 7", "avc1", 1000)
    assert (track.first_dts, track.last_dts, track.samples, track.steps) == (5000, 5200, 6, {40: 5})
    assert track.opening == Opening(True, True)


def test_samples_may_say_everything_themselves() -> None:
    """Durations, flags and composition offsets, signed ones included; and the defaults of a fragment."""
    samples = struct.pack(">IIIi", 30, 9, 0x10000, -10) + struct.pack(">IIIi", 50, 9, 0, 20)
    run = struct.pack(">IIi", 0xF01, 2, 99) + samples
    (media,) = read(moov() + moof(1000, run) + box(b"mdat", bytes(100)))
    track = media.tracks[0]
    assert (track.first_dts, track.first_pts, track.last_dts, track.steps) == (1000, 990, 1030, {30: 1})
    assert track.opening.key is False
    defaults = struct.pack(">IIQIIII", 0x3B, 7, 0, 1, 20, 5, 0)
    (media,) = read(moov() + moof(1000, struct.pack(">II", 0, 4), tfhd=defaults) + box(b"mdat", bytes(100)))
    assert media.tracks[0].steps == {20: 3}
    assert media.tracks[0].opening.key is True


@pytest.mark.parametrize(
    ("edits", "version", "shift"),
    [
        (struct.pack(">IIIiI", 0, 1, 0, 80, 1 << 16), 0, -80),
        (struct.pack(">IIIiIIiI", 0, 2, 300, -1, 1 << 16, 0, 0, 1 << 16), 0, 500),
        (struct.pack(">IIQqI", 1 << 24, 1, 0, 80, 1 << 16), 1, -80),
        (struct.pack(">IIIiI", 0, 1, 300, -1, 1 << 16), 0, 500),
    ],
)
def test_edit_lists_move_what_is_shown(edits: bytes, version: int, shift: int) -> None:
    """Priming is cut off, and an empty edit delays."""
    data = (
        moov(edit=box(b"edts", box(b"elst", edits)), version=version)
        + moof(1000, KEY_RUN)
        + bytes([0, 0, 0, 8])
        + b"free"
    )
    (media,) = read(data + box(b"mdat", bytes(2000)))
    assert media.tracks[0].first_pts == 1000 + shift


def test_fragments_without_an_init_segment() -> None:
    """The tracks of the segment before serve; alone, there is nothing to say of them."""
    alone = moof(1000, KEY_RUN) + box(b"mdat", bytes(1000))
    first, second = read(moov() + alone, alone)
    assert (first.tables, second.tables) == (True, False)
    assert second.tracks[0].first_dts == 1000
    assert read(alone)[0].tracks == ()


@pytest.mark.parametrize(
    "bad",
    [
        struct.pack(">I4s", 3, b"free"),
        struct.pack(">I4s", 100, b"moof"),
        struct.pack(">I4sQ", 1, b"mdat", 7),
        struct.pack(">I4s", 8 << 20, b"moof"),
        struct.pack(">I4s", 9, b"\xff\xfe\xfd\xfc"),
        struct.pack(">I4s", 100, b"mdat"),
        b"\0\0\0",
    ],
)
def test_boxes_that_make_no_sense_are_counted(bad: bytes) -> None:
    """What was before them counts."""
    (media,) = read(moov() + moof(1000, KEY_RUN) + box(b"mdat", bytes(1000)) + bad)
    assert media.faults == {Fault.BAD_BOX: 1}
    assert media.tracks[0].samples == 3


def test_long_boxes_are_skipped_and_the_last_may_have_no_end() -> None:
    """A size of 64 bits, and one of 0."""
    long = struct.pack(">I4sQ", 1, b"mdat", 16 + 3000) + bytes(3000)
    (media,) = read(
        moov() + moof(1000, KEY_RUN) + long + moof(1120, KEY_RUN) + struct.pack(">I4s", 0, b"mdat") + bytes(900)
    )
    assert media.faults == {}
    assert media.tracks[0].samples == 6


@pytest.mark.parametrize(
    ("data", "container"),
    [
        (TABLES + frames(1000, 4600), Container.MPEGTS),
        (b"\0" * 20 + TABLES + frames(1000, 4600), Container.MPEGTS),
        (moov(), Container.FMP4),
        (box(b"styp", b"msdh"), Container.FMP4),
        (b'{"a": 1}', Container.JSON),
        (b" [1, 2]\n", Container.JSON),
        (b"G", Container.OTHER),
        (b"Good morning, this is plain text. " * 30, Container.OTHER),
        (b"", Container.OTHER),
        (bytes(1000), Container.OTHER),
    ],
)
def test_sniffing(data: bytes, container: Container) -> None:
    """What bytes are, however few."""
    assert sniff(data[:752]) is container
    assert read(data, step=50)[0].container is container


def test_notes_have_a_limit() -> None:
    """So many distances are told apart, and no more; the rest still counts as samples."""
    notes = TrackNotes("video 1", Kind.VIDEO, "h264", 90_000, 1 << 33)
    dts = 0
    for step in range(MAX_STEPS + 100):
        dts += step + 1
        notes.sample(dts, dts)
    track = notes.finish()
    assert len(track.steps) == MAX_STEPS
    assert track.samples == MAX_STEPS + 100


def test_memory_is_bounded() -> None:
    """12 MB of segment leave its beginning behind, and nothing else."""
    chunk = TABLES + frames(*range(0, 3600 * 14, 3600)) * 40
    content = Channel().segment(follows=False)
    tracemalloc.start()
    for _ in range(120):
        content.feed(chunk)
    content.finish()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert content.size > 12_000_000
    assert peak < 2 * HEAD_BYTES + 2_000_000


PIECES = st.sampled_from(
    [
        TABLES,
        frames(1000, 4600),
        packet(0x102, 0, pes(900, bytes(100)), starts=True),
        moov(),
        moof(1000, KEY_RUN),
        box(b"mdat", bytes(30)),
        b"\0\0\0\1mdat",
        b"\0\0\1\xe0",
        b"\x47",
        PMT,
        b"\0\0\0\0",
    ]
)
GARBAGE = st.lists(st.one_of(PIECES, st.binary(max_size=400)), max_size=8).map(b"".join)


def flipped(data: bytes, places: list[int]) -> bytes:
    """With some bits turned over."""
    changed = bytearray(data)
    for place in places:
        if changed:
            changed[place // 8 % len(changed)] ^= 1 << place % 8
    return bytes(changed)


@settings(max_examples=150)
@given(
    segments=st.lists(GARBAGE, min_size=1, max_size=3),
    places=st.lists(st.integers(0, 1 << 20), max_size=12),
    step=st.integers(1, 1000),
)
def test_any_bytes_are_taken(segments: list[bytes], places: list[int], step: int) -> None:
    """Whatever they are, however they are cut: no exception, and the same result however they arrive."""
    damaged = [flipped(data, places) for data in segments]
    assert read(*damaged, step=step) == read(*damaged, step=1 << 20)
    for reader in (MpegtsReader(Multiplex()), Fmp4Reader(Init())):
        for data in damaged:
            reader.feed(data)
        reader.finish()


@settings(max_examples=60)
@given(data=st.binary(max_size=300), codec=st.sampled_from(["h264", "hevc", "vvc", "mpeg2video", "mpeg4", "aac"]))
def test_any_elementary_stream_is_taken(data: bytes, codec: str) -> None:
    """Start codes in any bytes."""
    opening(codec, data)
    opening(codec, b"\0\0\1".join([data[at : at + 5] for at in range(0, len(data), 5)]))
    for codec in ("aac", "mpegaudio", "opus"):
        counted(codec, data, data)


def test_heads_over_several_packets_and_packets_without_times() -> None:
    """A head may be cut by a packet's end; what has no time is no sample, but its sound counts; padding is nothing."""
    frame = bytes([0xFF, 0xF1, 0x4C, 0x80, 100 >> 3, (100 & 7) << 5 | 0x1F, 0xFC]) + bytes(93)
    head = pes(9000, frame)
    parts = [
        packet(0x102, 0, head[:6], starts=True),
        packet(0x102, 1, head[6:11]),
        packet(0x102, 2, head[11:]),
        packet(0x102, 3, b"\0\0\1\xe0\0\0\x80\0\0" + frame, starts=True),
        packet(0x102, 4, b"\0\0\1\xbe" + bytes(50), starts=True),
        packet(0x102, 5, bytes(184)),
    ]
    (media,) = read(TABLES + b"".join(parts))
    sound = next(track for track in media.tracks if track.kind is Kind.AUDIO)
    assert (sound.samples, sound.first_pts) == (1, 9000)
    assert sound.due == 9000 + 2 * 1920


def test_what_is_no_pes_packet_is_left_out() -> None:
    """Without a start code there are no times."""
    (media,) = read(TABLES + packet(0x101, 0, bytes(100), starts=True) + packet(0x1FFF, 0, bytes(184)))
    assert media.tracks[0].samples == 0
