"""Boxes, packets and tables made by hand, and any bytes at all."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tricklecast.trickle.media.containers import (
    MAX_BOXES,
    MAX_CHILDREN,
    MAX_STREAMS,
    MAX_TRACKS,
    NULL_PID,
    PACKET_BYTES,
    SNIFF_BYTES,
    Box,
    Container,
    Continuity,
    Fragment,
    ProgramTables,
    Step,
    Track,
    TsPacket,
    box,
    boxes,
    crc32,
    damaged_fragments,
    find_box,
    fragment_samples,
    fragments,
    full_box,
    has_huge_track,
    has_sample_table,
    init_segment,
    leading,
    nal_units,
    number,
    sniff,
    tracks,
    ts_packets,
)


def kinds(data: bytes) -> list[tuple[bytes, bytes]]:
    """The boxes side by side: names and contents."""
    return [(item.kind, bytes(item.body)) for item in boxes(data)]


def test_boxes_are_walked_side_by_side() -> None:
    """Sizes of 32 and 64 bits are read, and a last box without a size."""
    long = struct.pack(">I4sQ", 1, b"mdat", 19) + b"abc"
    last = struct.pack(">I4s", 0, b"free") + b"rest"
    data = box(b"ftyp", b"iso", b"6") + long + last
    assert kinds(data) == [(b"ftyp", b"iso6"), (b"mdat", b"abc"), (b"free", b"rest")]
    assert [(item.start, item.end) for item in boxes(data)] == [(0, 12), (12, 31), (31, len(data))]
    assert next(boxes(bytearray(data))) == Box(b"ftyp", 0, 12, memoryview(b"iso6"))


@pytest.mark.parametrize(
    "bad",
    [
        struct.pack(">I4s", 7, b"free"),
        struct.pack(">I4s", 9, b"moof"),
        struct.pack(">I4sQ", 1, b"mdat", 15) + bytes(9),
        struct.pack(">I4sQ", 1, b"mdat", 1 << 60),
        b"\0\0\0",
        b"",
    ],
)
def test_the_walk_ends_at_a_box_that_makes_no_sense(bad: bytes) -> None:
    """The caller sees the place by the last box's end."""
    data = box(b"free", b"1") + bad
    assert kinds(data) == [(b"free", b"1")]


def test_the_number_of_boxes_has_a_limit() -> None:
    """Hostile bytes may hold millions of empty boxes."""
    assert sum(1 for _ in boxes(box(b"free") * (MAX_BOXES + 10))) == MAX_BOXES


def test_a_box_is_found_by_its_path() -> None:
    """The first box of each kind counts; a missing one gives nothing."""
    data = box(b"free") + box(b"moov", box(b"trak", box(b"tkhd", b"1")), box(b"trak", box(b"tkhd", b"2")))
    assert find_box(data, b"moov", b"trak", b"tkhd") == b"1"
    assert find_box(data, b"moov", b"mvex", b"trex") == b""
    assert find_box(data) == data


def test_numbers_beyond_the_end_are_zeros() -> None:
    """Callers need not check lengths."""
    assert number(b"\1\2", 0, 2) == 258
    assert number(b"\1\2", 1, 2) == 512
    assert number(b"\1\2", 5, 4) == 0


def test_an_init_segment_comes_before_the_media() -> None:
    """It ends with ``moov``; a ``moov`` behind the media belongs to an ordinary file."""
    init = box(b"ftyp", b"iso5") + box(b"moov", b"tracks")
    assert init_segment(init + box(b"moof") + box(b"mdat")) == init
    assert init_segment(box(b"ftyp") + box(b"mdat") + box(b"moov")) == b""
    assert init_segment(box(b"ftyp")) == b""


def trak(version: int, ident: int, timescale: int) -> bytes:
    """The headers of a track; its dates take 8 or 16 bytes."""
    dates = bytes(16 if version else 8)
    header = full_box(b"tkhd", version, 0, dates, ident.to_bytes(4))
    media = full_box(b"mdhd", version, 0, dates, timescale.to_bytes(4))
    return box(b"trak", header, box(b"mdia", media))


def test_tracks_are_read_from_an_init_segment() -> None:
    """Both versions of the headers are read; a missing time scale is one tick a second."""
    parts = [trak(0, 1, 90_000), trak(1, 7, 48_000), trak(0, 3, 0)]
    init = box(b"ftyp") + box(b"moov", box(b"mvhd"), *parts)
    assert tracks(init) == [Track(1, 90_000), Track(7, 48_000), Track(3, 1)]
    assert tracks(b"") == []
    assert len(tracks(box(b"moov", box(b"trak") * (MAX_TRACKS + 1)))) == MAX_TRACKS


def test_pictures_lead() -> None:
    """Or else sound; text leads where it stands alone."""
    text, sound, picture, other = Track(1, 1, b"sbtl"), Track(2, 1, b"soun"), Track(3, 1, b"vide"), Track(4, 1, b"vide")
    assert leading([text, sound, picture, other]) is picture
    assert leading([text, sound]) is sound
    assert leading([text]) is text


def test_boxes_inside_of_others_have_a_limit_of_their_own() -> None:
    """A header may hold 100,000 empty boxes: only the first 128 are read."""
    for before, found in ((MAX_CHILDREN - 1, 1), (MAX_CHILDREN, 0)):
        moov = box(b"moov", box(b"free") * before, trak(0, 1, 90_000))
        assert len(tracks(moov)) == found
        assert bool(find_box(moov, b"moov", b"trak")) == bool(found)


def traf(track: int, *parts: bytes) -> bytes:
    """The headers of a track in a fragment."""
    return box(b"traf", full_box(b"tfhd", 0, 0, track.to_bytes(4)), *parts)


def test_fragments_are_numbered_and_have_times() -> None:
    """One track's time is enough; a cut time is none."""
    first = box(
        b"moof",
        full_box(b"mfhd", 0, 0, (41).to_bytes(4)),
        traf(1),
        traf(2, full_box(b"tfdt", 1, 0, (1 << 40).to_bytes(8))),
    )
    second = box(b"moof", full_box(b"mfhd", 0, 0, (42).to_bytes(4)), traf(1, box(b"tfdt", b"\0")), traf(2))
    found = list(fragments(first + box(b"mdat") + second))
    assert found == [Fragment(41, True), Fragment(42, False)]


def sized(number: int, *sizes: int, first: int = 0) -> bytes:
    """A fragment header whose run has samples of these sizes, each with a duration, and some with flags for the first.

    As in ISO/IEC 14496-12, 8.8.8.
    """
    flags = 0x301 | (4 if first else 0)
    samples = b"".join(bytes(4) + size.to_bytes(4) for size in sizes)
    run = full_box(b"trun", 0, flags, len(sizes).to_bytes(4), bytes(4 + first), samples)
    return box(b"moof", full_box(b"mfhd", 0, 0, number.to_bytes(4)), box(b"traf", full_box(b"tfhd", 0, 0), run))


def media(size: int) -> bytes:
    """A box of media."""
    return box(b"mdat", bytes(size))


WHOLE = sized(7, 3, 4) + media(7) + sized(8, 5, first=4) + media(2) + media(3) + sized(9) + media(0)


@pytest.mark.parametrize(
    ("data", "damaged"),
    [
        (b"", 0),
        (WHOLE, 0),
        (WHOLE + sized(1, 2) + media(2), 0),  # another publisher's
        (WHOLE[:-2], 1),
        (WHOLE + b"bytes that are no box", 1),
        (sized(7, 3) + media(3) + sized(8, 3).replace(b"moof", b"mOOf") + media(3) + sized(9, 3) + media(3), 1),
        (sized(7, 3) + media(3) + sized(9, 3) + media(3), 1),
        (sized(7, 3) + media(4), 1),
        (sized(7, 3) + sized(8, 4) + media(4), 1),
        (sized(7, 3, 4)[:-4] + media(3), 1),
        (box(b"moof", box(b"traf", full_box(b"trun", 0, 0, b"\0\0\0\1"))) + media(4), 0),  # sizes by default
    ],
)
def test_damaged_fragments_are_counted(data: bytes, damaged: int) -> None:
    """They are found by their numbers and the sizes of their samples."""
    assert damaged_fragments(data) == damaged


def test_the_samples_that_fragments_announce() -> None:
    """Runs count in misplaced and overlong boxes, too, but not in the media."""
    run = full_box(b"trun", 0, 0, (3).to_bytes(4))
    media = box(b"mdat", run)
    assert fragment_samples(box(b"moof", traf(1, run, run)) + media + box(b"moof", traf(2, run)) + media) == 9
    assert fragment_samples(memoryview(box(b"moov", run) + media + media[:-1])) == 3
    assert fragment_samples(struct.pack(">I4s", 999, b"moof") + struct.pack(">I4s", 500, b"traf") + run) == 3
    assert fragment_samples(b"trun") == fragment_samples(b"") == 0


@pytest.mark.parametrize(
    ("table", "found"),
    [
        (full_box(b"stsz", 0, 0, bytes(4), (5).to_bytes(4)), True),
        (full_box(b"stz2", 0, 0, bytes(4), (5).to_bytes(4)), True),
        (full_box(b"stco", 0, 0, (5).to_bytes(4)), True),
        (full_box(b"co64", 0, 0, (5).to_bytes(4)), True),
        (box(b"cmov"), True),
        (full_box(b"stsz", 0, 0, bytes(8)) + full_box(b"stco", 0, 0, bytes(4)), False),
    ],
)
def test_sample_tables_of_ordinary_files(table: bytes, found: bool) -> None:
    """The tables of a fragmented file are empty."""
    assert has_sample_table(box(b"mdat", b"cmov") + box(b"moov", box(b"trak", table))) is found


def test_units_stand_between_start_codes() -> None:
    """Zeros before a start code belong to it; what comes before the first one, and nothing at all, is no unit."""
    data = b"x\0\0\0\1\x67a\0b\0\0\1\0\0\1\x65c\0"
    assert nal_units(data) == [b"\x67a\0b", b"\x65c"]
    assert nal_units(data, 1) == [b"\x67a\0b\0\0\1\0\0\1\x65c"]
    assert nal_units(b"") == []


def packet(
    pid: int,
    counter: int,
    payload: bytes = b"",
    *,
    is_start: bool = False,
    adaptation: bytes | None = None,
    marks: int = 0,
) -> bytes:
    """A transport packet; stuffing in the adaptation field fills the rest."""
    room = 184 - len(payload)
    field = b""
    if room or adaptation is not None:
        body = (adaptation or b"\0").ljust(room - 1, b"\xff") if room > 1 else b""
        field = bytes([len(body)]) + body
    flags = marks | (0x20 if field else 0) | (0x10 if payload else 0) | counter & 0xF
    return bytes([0x47, (0x40 if is_start else 0) | pid >> 8, pid & 0xFF, flags]) + field + payload


def one(data: bytes) -> TsPacket:
    """The only packet of the bytes."""
    (found,) = ts_packets(data)
    return found


def test_the_fields_of_a_packet() -> None:
    """Header, adaptation field and payload are read, alone and together."""
    both = one(packet(0x1234, 7, b"payload", is_start=True, adaptation=b"\xc0"))
    assert (both.pid, both.counter, both.is_start, both.has_payload) == (0x1234, 7, True, True)
    assert (both.may_jump, both.has_clock) == (True, False)
    assert (both.payload, both.adaptation[:2]) == (b"payload", b"\xc0\xff")
    assert not both.is_damaged
    assert not both.is_scrambled
    full = one(packet(0x100, 0, bytes(range(184))))
    assert (full.payload, full.adaptation, full.is_start) == (bytes(range(184)), b"", False)
    assert (full.may_jump, full.has_clock) == (False, False)
    clock = one(packet(0x100, 0, adaptation=b"\x10" + bytes([0, 0, 0, 1, 0x80, 5])))
    assert (clock.has_clock, clock.has_payload, clock.payload) == (True, False, b"")
    stuffing = one(packet(0x100, 0, bytes(183)))
    assert (stuffing.adaptation, stuffing.payload, stuffing.may_jump) == (b"", bytes(183), False)
    short = bytes([0x47, 1, 0, 0x20, 1, 0x10]) + bytes(182)
    assert not one(short).has_clock


def test_damaged_and_encrypted_packets_say_so() -> None:
    """An error mark, an overlong adaptation field, and encryption are seen."""
    marked = bytearray(packet(0x100, 0, b"x"))
    marked[1] |= 0x80
    assert one(bytes(marked)).is_damaged
    assert one(bytes([0x47, 1, 0, 0x30, 184]) + bytes(183)).is_damaged
    assert one(packet(0x100, 0, b"x", marks=0x80)).is_scrambled


def test_bytes_that_are_no_packets_are_skipped() -> None:
    """The next packet is found behind them, and its start shows the gap; the last packet may be cut."""
    good = packet(0x100, 0, bytes(184))
    data = b"\1" * 100 + good * 3 + b"\2\x47" * 30 + good * 3 + b"\x47" * 50
    assert [item.start for item in ts_packets(memoryview(data))] == [100, 288, 476, 724, 912, 1100]
    assert list(ts_packets(b"\1" * 1000)) == []
    assert list(ts_packets(good[:-1])) == []


def steps(*packets: bytes) -> list[Step]:
    """The steps of the packets' counters."""
    continuity = Continuity()
    return [continuity.feed(item) for item in ts_packets(b"".join(packets))]


def test_counters_go_on_from_packet_to_packet() -> None:
    """Each PID counts from 0 to 15; packets without payload and null packets do not count."""
    packets = [packet(1, 14, b"a"), packet(2, 3, b"b"), packet(1, 15, b"c"), packet(1, 15), packet(1, 0, b"d")]
    stuffing = [packet(NULL_PID, 9, b"x"), packet(NULL_PID, 2, b"y")]
    assert steps(*packets, *stuffing) == [Step.NEXT] * 7
    assert steps(packet(1, 0, b"a"), packet(1, 2, b"b"), packet(1, 3, b"c")) == [Step.NEXT, Step.LOST, Step.NEXT]


def test_a_packet_may_come_twice() -> None:
    """A third time is a loss, and so is the same counter with another payload."""
    again = packet(1, 0, b"a")
    assert steps(again, again, packet(1, 1, b"b")) == [Step.NEXT, Step.REPEATED, Step.NEXT]
    assert steps(again, again, again) == [Step.NEXT, Step.REPEATED, Step.LOST]
    assert steps(again, packet(1, 0, b"b")) == [Step.NEXT, Step.LOST]


def test_a_counter_may_jump_where_the_packet_says_so() -> None:
    """It may also jump after a reset."""
    assert steps(packet(1, 0, b"a"), packet(1, 9, b"b", adaptation=b"\x80")) == [Step.NEXT, Step.NEXT]
    continuity = Continuity()
    continuity.feed(one(packet(1, 0, b"a")))
    continuity.reset()
    assert continuity.feed(one(packet(1, 9, b"b"))) is Step.NEXT


def section(table: int, body: bytes) -> bytes:
    """A section of a program table."""
    head = bytes([table]) + struct.pack(">H", 0xB000 | len(body) + 9) + b"\0\1\xc1\0\0" + body
    return head + struct.pack(">I", crc32(head))


PAT = section(0, b"\0\0\xe0\x10" + b"\0\1\xe1\0")
"""The network's table on PID 0x10, and program 1 on PID 0x100."""

PMT = section(2, b"\xe1\1\xf0\0" + b"\x1b\xe1\1\xf0\0" + b"\x0f\xe1\2\xf0\3\x0a\1\0")
"""H.264 on PID 0x101; AAC on 0x102, with a descriptor."""


def read(*packets: bytes) -> ProgramTables:
    """The tables of some packets."""
    tables = ProgramTables()
    for item in ts_packets(b"".join(packets)):
        tables.feed(item)
    return tables


def carrying(pid: int, *sections: bytes) -> bytes:
    """A packet with whole sections and stuffing."""
    return packet(pid, 0, (b"\0" + b"".join(sections)).ljust(184, b"\xff"), is_start=True)


def test_tables_tell_streams() -> None:
    """They are complete with a PMT that an earlier PAT names."""
    assert not read(carrying(0, PAT)).is_complete
    assert not read(carrying(0x100, PMT), carrying(0, PAT)).is_complete
    tables = read(carrying(0, PAT), packet(0x101, 0, b"picture"), carrying(0x100, PMT))
    assert (tables.is_complete, tables.damaged) == (True, 0)
    assert tables.streams == {0x101: 0x1B, 0x102: 0x0F}
    assert tables.descriptors == {0x101: b"", 0x102: b"\x0a\1\0"}
    assert tables.program_of(0x102) == (0x100, number(PMT, 8, 2) & 0x1FFF)
    assert tables.program_of(0x103) is None
    assert [pid for pid in (0, 0x10, 0x100, 0x101) if tables.carries(pid)] == [0, 0x100]


def test_damaged_tables_are_counted() -> None:
    """Damaged sections count and are ignored; short and foreign ones are ignored."""
    tables = read(carrying(0, PAT), carrying(0x100, PMT[:-1] + b"\0"), carrying(0x100, b"\2\xb0\1\0"))
    assert (tables.is_complete, tables.damaged, tables.streams) == (False, 2, {})
    other = section(0x42, bytes(12))
    assert read(carrying(0, PAT), carrying(0x100, other)).streams == {}
    assert not read(carrying(0, PAT), carrying(0, other)).carries(0x100)


def test_sections_over_several_packets() -> None:
    """A long section is joined, a second one in a packet is found, an overlong one is ignored."""
    long = section(2, b"\xe1\1\xf0\0" + b"".join(b"\x1b\xe1" + bytes([at]) + b"\xf0\0" for at in range(60)))
    parts = [packet(0x100, 0, b"\0" + long[:183], is_start=True), packet(0x100, 1, long[183:].ljust(184, b"\xff"))]
    assert len(read(carrying(0, PAT), *parts).streams) == 60
    assert not read(carrying(0, PAT), parts[1]).is_complete
    rest = bytes([len(long) - 183]) + long[183:] + PMT
    joined = packet(0x100, 1, rest.ljust(184, b"\xff"), is_start=True)
    assert read(carrying(0, PAT), parts[0], joined).streams == {0x101: 0x1B, 0x102: 0x0F}
    assert read(carrying(0, PAT, PAT), carrying(0x100, PMT, long[:50])).is_complete
    endless = packet(0x100, 0, b"\0\2\xbf\xff" + bytes(180), is_start=True)
    assert read(carrying(0, PAT), endless, packet(0x100, 1, PMT.ljust(184, b"\0"))).streams == {}
    assert not read(carrying(0, PAT), packet(0x100, 0, b"", is_start=True)).is_complete


def test_the_number_of_streams_has_a_limit() -> None:
    """The limit holds for one program and for all together."""
    many = section(2, b"\xe1\1\xf0\0" + b"".join(b"\x1b\xe2" + bytes([at]) + b"\xf0\0" for at in range(200)))
    pieces = [b"\0" + many[:183], *(many[at : at + 184] for at in range(183, len(many), 184))]
    packets = [packet(0x100, at, part.ljust(184, b"\xff"), is_start=at == 0) for at, part in enumerate(pieces)]
    assert len(many) < 1024 + 3
    assert len(read(carrying(0, PAT), *packets).streams) == MAX_STREAMS
    two = section(0, b"\0\1\xe1\0" + b"\0\2\xe1\x0f")
    assert len(read(carrying(0, two), *packets, carrying(0x10F, PMT)).streams) == MAX_STREAMS


TABLES = carrying(0, PAT) + carrying(0x100, PMT)


@pytest.mark.parametrize(
    ("data", "container"),
    [
        (TABLES * 2, Container.MPEGTS),
        (b"\0" * 20 + TABLES * 2, Container.MPEGTS),
        (TABLES[:PACKET_BYTES], Container.MPEGTS),
        (box(b"moov", bytes(100)), Container.FMP4),
        (box(b"styp", b"msdh"), Container.FMP4),
        (b"\0\0\0\1mdat", Container.FMP4),
        (b"\0\0\0\0mdat", Container.FMP4),
        (b"\0\0\0\3mdat", Container.OTHER),
        (b'{"a": 1}', Container.JSON),
        (b" [1, 2]\n", Container.JSON),
        (b"G", Container.OTHER),
        (b"Good morning, this is plain text. " * 30, Container.OTHER),
        (b"", Container.OTHER),
        (b"   ", Container.OTHER),
        (bytes(1000), Container.OTHER),
    ],
)
def test_sniffing(data: bytes, container: Container) -> None:
    """Each container is recognised, also from few bytes."""
    assert sniff(data) is container
    assert sniff(memoryview(data)[:SNIFF_BYTES]) is container


PIECES = st.sampled_from(
    [TABLES, packet(0x101, 1, b"\0\0\1\xe0"), box(b"moof", traf(1)), box(b"moov", trak(0, 1, 9)), b"\x47"]
)
ANY = st.lists(st.one_of(PIECES, st.binary(max_size=300)), max_size=8).map(b"".join)


@given(data=ANY, places=st.lists(st.integers(0, 1 << 14), max_size=12))
def test_any_bytes_are_taken(data: bytes, places: list[int]) -> None:
    """No bytes raise, and nothing is read beyond their end."""
    changed = bytearray(data)
    for place in places:
        if changed:
            changed[place // 8 % len(changed)] ^= 1 << place % 8
    sniff(changed)
    assert all(item.end <= len(changed) for item in boxes(changed))
    assert len(init_segment(changed)) <= len(changed)
    list(fragments(changed))
    assert fragment_samples(changed) >= 0
    assert damaged_fragments(changed) >= 0
    assert has_sample_table(changed) in (True, False)
    assert has_huge_track(changed) in (True, False)
    tracks(changed)
    continuity, tables = Continuity(), ProgramTables()
    for item in ts_packets(changed):
        continuity.feed(item)
        tables.feed(item)
        assert len(item.payload) <= 184
        assert item.has_clock in (True, False)
