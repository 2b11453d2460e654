"""Wall-clock times in MPEG-TS and MP4 segments, and the clock in a picture."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tricklecast.trickle.media.clock import (
    CAPTURED,
    COLUMNS,
    MAX_PACKETS,
    ROWS,
    TIME_BITS,
    ProducerTime,
    draw_clock,
    prft_box,
    read_clock,
    read_prft,
    read_temi,
    read_time,
    strip_height,
    temi_packet,
)
from tricklecast.trickle.media.containers import PACKET_BYTES

NOW_US = 1_785_000_000_123_456
FIRST_US = ((1 << 31) - 2_208_988_800) * 1_000_000
LAST_US = ((1 << 32) + (1 << 31) - 2_208_988_800) * 1_000_000 - 1

times = st.integers(FIRST_US, LAST_US)
"""The times that 64 bits of NTP tell apart, under the convention for its wrap in 2036."""


def field_packet(field: bytes, *, flags: int = 0x20, length: int | None = None) -> bytes:
    """A transport packet with this adaptation field."""
    head = bytes([0x47, 0x01, 0x00, flags, len(field) if length is None else length])
    return (head + field).ljust(PACKET_BYTES, b"\xff")


def box(kind: bytes, body: bytes = b"", size: int | None = None) -> bytes:
    """An MP4 box."""
    return (8 + len(body) if size is None else size).to_bytes(4) + kind + body


NULL = b"\x47\x1f\xff\x10" + bytes(184)
NTP = bytes.fromhex("ee0f6ec01f9acffa")  # NOW_US
TIMELINE = b"\x20\x7f\x00" + NTP


@given(unix_us=times, pid=st.integers(0, 0x1FFE))
@example(unix_us=FIRST_US, pid=0x100)
@example(unix_us=LAST_US, pid=0x100)
def test_a_temi_packet_gives_its_time_back(unix_us: int, pid: int) -> None:
    """Times are read back to the microsecond, from 1968 to 2104, over the wrap of NTP's seconds in 2036."""
    packet = temi_packet(pid, unix_us)
    assert len(packet) == PACKET_BYTES
    assert read_temi(packet) == unix_us


def test_a_temi_packet_byte_for_byte() -> None:
    """It has no payload, one extension, one timeline descriptor with an NTP time, and stuffing."""
    packet = temi_packet(0x1234, NOW_US)
    assert packet[:5] == bytes([0x47, 0x12, 0x34, 0x20, 183])
    assert packet[5:7] == bytes([0x01, 14])  # extension; its length
    assert packet[7:10] == bytes([0x0F, 0x04, 11])  # descriptors; timeline; its length
    assert packet[10:13] == bytes([0x20, 0x7F, 0])
    assert packet[13:21] == NTP
    assert set(packet[21:]) == {0xFF}


@pytest.mark.parametrize("pid", [-1, 0x1FFF, 0x2000])
def test_a_temi_packet_needs_the_pid_of_a_stream(pid: int) -> None:
    """The PID of null packets and numbers of more than thirteen bits are refused."""
    with pytest.raises(ValueError, match="PID"):
        temi_packet(pid, NOW_US)


def test_the_time_is_found_among_the_first_packets_only() -> None:
    """It is found behind the tables; the rest of the segment is not searched."""
    packet = temi_packet(0x100, NOW_US)
    assert read_temi(NULL * (MAX_PACKETS - 1) + packet) == NOW_US
    assert read_temi(NULL * MAX_PACKETS + packet) is None
    assert read_temi(memoryview(bytearray(packet + temi_packet(0x100, 0)))) == NOW_US


@pytest.mark.parametrize(
    "field",
    [
        pytest.param(b"\x01\x0e\x0f\x04\x0b" + TIMELINE, id="alone"),
        pytest.param(b"\x1d" + bytes(13) + b"\x0e\x0f\x04\x0b" + TIMELINE, id="after clocks and splice countdown"),
        pytest.param(b"\x03\x02\xaa\xbb\x0e\x0f\x04\x0b" + TIMELINE, id="after private data"),
        pytest.param(b"\x01\x18\xef" + bytes(10) + b"\x04\x0b" + TIMELINE, id="after the extension's other parts"),
        pytest.param(b"\x01\x12\x0f\x05\x02\xaa\xbb\x04\x0b" + TIMELINE, id="after another descriptor"),
        pytest.param(b"\x01\x16\x0f\x04\x13\x60\x7f\x00" + bytes(8) + NTP, id="after a media time of 32 bits"),
        pytest.param(b"\x01\x1a\x0f\x04\x17\xa0\x7f\x00" + bytes(12) + NTP, id="after a media time of 64 bits"),
        pytest.param(b"\x01\x13\x0f\x04\x03\x00\x7f\x00\x04\x0b" + TIMELINE, id="after a time line without NTP"),
    ],
)
def test_other_multiplexers_times_are_read(field: bytes) -> None:
    """Other fields of the adaptation field, its extension and the descriptor are skipped."""
    assert read_temi(field_packet(field)) == NOW_US


PES = b"\x00\x00\x01\xe0\x00\x00\x80\x80\x05\x2f\xff\xff\xff\xfd"
"""Begin of a packet of a stream, whose presentation time is the greatest but one."""


def payload_packet(pid: int, payload: bytes, flags: int = 0x40) -> bytes:
    """A transport packet with this payload."""
    return bytes([0x47, flags | pid >> 8, pid & 0xFF, 0x10]) + payload.ljust(184, b"\xff")


@pytest.mark.parametrize(
    ("behind", "pts"),
    [
        (payload_packet(0x100, PES), (1 << 33) - 2),
        (payload_packet(0x101, PES) + payload_packet(0x100, bytes(20), 0) + payload_packet(0x100, PES), (1 << 33) - 2),
        (payload_packet(0x100, PES.replace(b"\x80\x80", b"\x80\x00")), None),
        (payload_packet(0x100, bytes(20)), None),
        (payload_packet(0x101, PES), None),
        (b"", None),
        (bytes(PACKET_BYTES), None),
    ],
    ids=["next", "behind other packets", "without a time", "no stream", "another stream", "the end", "no packet"],
)
def test_the_time_of_mpegts_belongs_to_the_next_frame_of_its_stream(behind: bytes, pts: int | None) -> None:
    """The frame is known by its presentation time, if that is there."""
    assert read_time(NULL + temi_packet(0x100, NOW_US) + behind) == ProducerTime(NOW_US, 0x100, pts)


def test_the_time_of_mpegts_may_stand_in_the_packet_of_its_frame() -> None:
    """As other multiplexers write it; a frame whose header is cut off has no presentation time."""
    body = b"\x01\x0e\x0f\x04\x0b" + TIMELINE
    packet = bytes([0x47, 0x41, 0x00, 0x30, len(body)]) + body + PES
    assert read_time(packet.ljust(PACKET_BYTES, b"\xff")) == ProducerTime(NOW_US, 0x100, (1 << 33) - 2)
    length = PACKET_BYTES - 5 - len(PES) + 1
    short = bytes([0x47, 0x41, 0x00, 0x30, length]) + body.ljust(length, b"\xff") + PES[:-1]
    assert read_time(short) == ProducerTime(NOW_US, 0x100, None)


def test_the_time_of_mp4_belongs_to_a_sample_of_a_track() -> None:
    """Its media time has 64 bits, in version 0 of the box 32."""
    assert read_time(prft_box(7, NOW_US, 1 << 40)) == ProducerTime(NOW_US, 7, 1 << 40)
    body = bytes(4) + (7).to_bytes(4) + NTP + (9).to_bytes(4)
    assert read_time(box(b"prft", body)) == ProducerTime(NOW_US, 7, 9)
    assert read_time(box(b"moof")) is None


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(temi_packet(0x100, NOW_US)[:-1], id="less than a packet"),
        pytest.param(b"\x00" + temi_packet(0x100, NOW_US), id="no packets"),
        pytest.param(field_packet(b"", length=0), id="empty field"),
        pytest.param(field_packet(b"\x00"), id="no extension"),
        pytest.param(field_packet(b"\x01", length=1), id="extension without length"),
        pytest.param(field_packet(b"\x03", length=1), id="private data without length"),
        pytest.param(field_packet(b"\x01\x00"), id="empty extension"),
        pytest.param(field_packet(b"\x01\x0e\x1f\x04\x0b" + TIMELINE), id="said to have no descriptors"),
        pytest.param(field_packet(b"\x01\x0d\x0f\x04\x0b" + TIMELINE), id="descriptor cut short"),
        pytest.param(field_packet(b"\x01\x05\x0f\x04\x02\x20\x7f"), id="descriptor too short"),
        pytest.param(field_packet(b"\x01\x0e\x0f\x04\x0b\xe0" + TIMELINE[1:]), id="unknown kind of media time"),
        pytest.param(field_packet(b"\x01\x0e\x0f\x05\x0b" + TIMELINE), id="another descriptor"),
    ],
)
def test_no_temi_is_none(data: bytes) -> None:
    """A missing, damaged or different descriptor gives no time, and no error."""
    assert read_temi(data) is None


@given(st.binary(max_size=600))
def test_reading_never_raises(data: bytes) -> None:
    """Any bytes give a time or None."""
    read_temi(data)
    read_prft(data)
    for start in range(0, len(data) - PACKET_BYTES, PACKET_BYTES):
        read_temi(field_packet(data[start : start + 183], length=183))
    read_prft(box(b"ftyp", data) + data)


@given(unix_us=times, track=st.integers(1, 2**32 - 1), media_time=st.integers(0, 2**64 - 1))
def test_a_prft_box_gives_its_time_back(unix_us: int, track: int, media_time: int) -> None:
    """Times are read back to the microsecond, for any track and media time."""
    assert read_prft(prft_box(track, unix_us, media_time)) == unix_us


def test_a_prft_box_byte_for_byte() -> None:
    """It has version 1 and the flags of a captured time."""
    data = prft_box(3, NOW_US, 90_000)
    assert data == box(b"prft", bytes([1, 0, 0, CAPTURED]) + bytes([0, 0, 0, 3]) + NTP + (90_000).to_bytes(8))


def test_prft_is_found_behind_the_init_segment() -> None:
    """Boxes with sizes of 64 bits are walked; later fragments' times do not count."""
    prft = prft_box(1, NOW_US, 0)
    large = box(b"free", (20).to_bytes(8) + b"full", size=1)
    assert read_prft(box(b"ftyp", b"isom") + large + box(b"moov", bytes(50)) + prft + box(b"moof")) == NOW_US
    assert read_prft(box(b"moof") + prft) is None


def test_prft_of_version_0_is_read() -> None:
    """Version 0 has a media time of 32 bits."""
    assert read_prft(box(b"prft", bytes(8) + NTP + bytes(4))) == NOW_US


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(box(b"prft", bytes(8) + NTP), id="too short"),
        pytest.param(prft_box(1, NOW_US, 0)[:-9], id="cut short"),
        pytest.param(box(b"free", size=0) + prft_box(1, NOW_US, 0), id="behind a box without end"),
        pytest.param(box(b"free", size=1) + bytes(8) + prft_box(1, NOW_US, 0), id="behind a box of no size"),
        pytest.param(box(b"free") * 64 + prft_box(1, NOW_US, 0), id="behind too many boxes"),
    ],
)
def test_no_prft_is_none(data: bytes) -> None:
    """A missing, damaged or different box gives no time, and no error."""
    assert read_prft(data) is None


# The clock in a picture.

NOW_MS = 1_785_000_000_123

clock_times = st.integers(0, 2**TIME_BITS - 1)
few_walks = settings(max_examples=25)


class Picture:
    """A picture of luma, with a clock."""

    def __init__(self, unix_ms: int, width: int, height: int, *, black: int = 16, white: int = 235) -> None:
        self.width, self.height = width, height
        self.pixels = [[128] * width for _ in range(height)]
        for cell in draw_clock(unix_ms, width, height):
            for line in self.pixels[cell.top : cell.bottom]:
                line[cell.left : cell.right] = [white if cell.white else black] * (cell.right - cell.left)

    def luma(self, x: int, y: int) -> int:
        """The brightness of a pixel; negative places raise."""
        assert x >= 0
        assert y >= 0
        return self.pixels[y][x]

    def read(self) -> int | None:
        """Read the picture's clock."""
        return read_clock(self.luma, self.width, self.height)

    def add_noise(self, most: int, seed: int) -> None:
        """Make every pixel up to ``most`` brighter or darker."""
        random = Random(seed)
        for line in self.pixels:
            line[:] = [min(255, max(0, level + random.randint(-most, most))) for level in line]

    def scaled(self, divisor: int) -> Picture:
        """A picture in which each block of pixels is averaged into one."""
        small = Picture(0, self.width // divisor, self.height // divisor)
        blocks = range(divisor)
        for y in range(small.height):
            for x in range(small.width):
                total = sum(self.pixels[y * divisor + j][x * divisor + i] for j in blocks for i in blocks)
                small.pixels[y][x] = total // divisor**2
        return small


@few_walks
@given(unix_ms=clock_times, width=st.integers(160, 400), height=st.integers(90, 300))
@example(unix_ms=0, width=160, height=90)
@example(unix_ms=2**TIME_BITS - 1, width=1920, height=1080)
def test_a_drawn_clock_reads_back(unix_ms: int, width: int, height: int) -> None:
    """A clock is read back from a picture of any size."""
    assert Picture(unix_ms, width, height).read() == unix_ms


@pytest.mark.parametrize(("width", "height"), [(320, 180), (163, 91), (854, 480)])
def test_the_cells_fill_the_top_of_the_picture(width: int, height: int) -> None:
    """They leave no hole and do not overlap; the picture below them is free."""
    cells = draw_clock(NOW_MS, width, height)
    covered = [(x, y) for cell in cells for y in range(cell.top, cell.bottom) for x in range(cell.left, cell.right)]
    assert len(cells) == ROWS * COLUMNS
    assert len(covered) == len(set(covered)) == width * strip_height(height)
    assert strip_height(height) == max(y for _, y in covered) + 1


@pytest.mark.parametrize("unix_ms", [-1, 2**TIME_BITS])
def test_a_time_that_does_not_fit_is_refused(unix_ms: int) -> None:
    """It raises ValueError instead of drawing another time."""
    with pytest.raises(ValueError, match="cannot show"):
        draw_clock(unix_ms, 320, 180)


@few_walks
@given(unix_ms=clock_times, divisor=st.sampled_from([2, 3, 4]))
def test_a_clock_survives_being_scaled_down(unix_ms: int, divisor: int) -> None:
    """It is read from a quarter of 320 by 180."""
    assert Picture(unix_ms, 320, 180).scaled(divisor).read() == unix_ms


@few_walks
@given(unix_ms=clock_times, black=st.integers(0, 100), contrast=st.integers(60, 155))
def test_a_clock_survives_a_change_of_brightness(unix_ms: int, black: int, contrast: int) -> None:
    """The darkest and the brightest cell are black and white."""
    assert Picture(unix_ms, 160, 90, black=black, white=black + contrast).read() == unix_ms


@few_walks
@given(unix_ms=clock_times, seed=st.integers(), noise=st.integers(0, 80))
def test_a_clock_survives_noise(unix_ms: int, seed: int, noise: int) -> None:
    """Noise that leaves black darker than white is averaged away."""
    picture = Picture(unix_ms, 160, 90)
    picture.add_noise(noise, seed)
    assert picture.read() == unix_ms


@few_walks
@given(unix_ms=clock_times, seed=st.integers(), noise=st.integers(80, 2000))
def test_noise_never_makes_another_time(unix_ms: int, seed: int, noise: int) -> None:
    """A clock that drowns in noise reads as None."""
    picture = Picture(unix_ms, 160, 90)
    picture.add_noise(noise, seed)
    assert picture.read() in (unix_ms, None)


@few_walks
@given(
    unix_ms=clock_times,
    flipped=st.lists(st.integers(0, ROWS * COLUMNS - 1), min_size=1, max_size=ROWS * COLUMNS, unique=True),
)
def test_a_damaged_clock_reads_as_none(unix_ms: int, flipped: list[int]) -> None:
    """Any number of wrong cells gives None: a wrong time is worse than no time."""
    picture = Picture(unix_ms, 160, 90)
    cells = draw_clock(unix_ms, 160, 90)
    for index in flipped:
        cell = cells[index]
        for line in picture.pixels[cell.top : cell.bottom]:
            line[cell.left : cell.right] = [16 if cell.white else 235] * (cell.right - cell.left)
    assert picture.read() is None


@given(st.binary(min_size=ROWS * COLUMNS, max_size=ROWS * COLUMNS))
@example(bytes(ROWS * COLUMNS))
@example(b"\xff" * ROWS * COLUMNS)
def test_a_picture_without_a_clock_reads_as_none(levels: bytes) -> None:
    """Flat and random pictures give None."""
    width, height = COLUMNS * 10, ROWS * 10 * 9 // 2

    def luma(x: int, y: int) -> int:
        return levels[y // 10 * COLUMNS + x // 10]

    assert read_clock(luma, width, height) is None


@pytest.mark.parametrize(("width", "height"), [(0, 0), (19, 180), (320, 17)])
def test_a_picture_too_small_for_the_cells_reads_as_none(width: int, height: int) -> None:
    """No pixel is asked for."""

    def luma(x: int, y: int) -> int:
        raise AssertionError

    assert read_clock(luma, width, height) is None
