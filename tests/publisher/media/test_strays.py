"""Bytes of MPEG-TS that belong to no packet."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tricklecast.publisher.media.strays import PART_BYTES, SIZES, FileStrays, Strays
from tricklecast.trickle.media.containers import PACKET_BYTES


def packets(number: int, size: int = PACKET_BYTES, seed: int = 1) -> bytes:
    """Packets with anything in them, some of them null packets; those of M2TS stand behind a time of four bytes."""
    random = Random(seed)
    before, behind = (4, 0) if size == 192 else (0, size - PACKET_BYTES)
    made = []
    for index in range(number):
        body = b"\x1f\xff\x10" + bytes(184) if index % 7 == 3 else random.randbytes(PACKET_BYTES - 1)
        made.append(random.randbytes(before) + b"\x47" + body + random.randbytes(behind))
    return b"".join(made)


def noise(size: int) -> bytes:
    """Bytes that are no packets, though some of them are like the first one of a packet."""
    return Random(2).randbytes(size)


def counted(data: bytes, *, by: int) -> int:
    """The strays of bytes that come in parts."""
    strays = Strays()
    for at in range(0, len(data), by):
        strays.feed(data[at : at + by])
    strays.end()
    return strays.count


@pytest.mark.parametrize("by", [1, 188, 1000, 1 << 20])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("cut", [0, 1, 50, 187])
def test_clean_media_has_none(by: int, size: int, cut: int) -> None:
    """In each size of packets, also if it begins or ends in the middle of one."""
    data = packets(60, size)
    assert counted(data[cut:], by=by) == 0
    assert counted(data[: len(data) - cut], by=by) == 0
    assert counted(data[:size], by=by) == 0
    assert counted(b"", by=by) == 0


@pytest.mark.parametrize("by", [1, 188, 1000, 1 << 20])
@pytest.mark.parametrize("size", SIZES)
def test_garbage_counts(by: int, size: int) -> None:
    """In front of the packets, between them and behind them; of M2TS with a time that may belong to either side."""
    data, garbage = packets(30, size), noise(3000)
    assert counted(garbage + data, by=by) == pytest.approx(3000, abs=4)
    assert counted(data + garbage + data, by=by) == pytest.approx(3000, abs=size)
    assert counted(data + garbage, by=by) == pytest.approx(3000, abs=2 * size)
    assert counted(data + garbage + data[: 2 * size], by=by) == pytest.approx(3000, abs=2 * size)


@pytest.mark.parametrize("by", [1, 1000, 1 << 20])
def test_damage_to_packets_counts(by: int) -> None:
    """A packet that was cut, and a first byte that is wrong; other bytes may be anything."""
    data = packets(60)
    assert 0 < counted(data[:1000] + data[1100:], by=by) < PACKET_BYTES
    assert counted(data[: 10 * PACKET_BYTES] + b"\x46" + data[10 * PACKET_BYTES + 1 :], by=by) == PACKET_BYTES


def test_packets_may_go_on_in_another_size() -> None:
    """The file is a copy of several. At most one packet of the greater size is taken to be too long."""
    assert counted(packets(20, 188) + packets(20, 204) + packets(20, 188), by=500) <= PACKET_BYTES


def test_garbage_is_counted_before_the_end() -> None:
    """A live source has none."""
    strays = Strays()
    strays.feed(packets(20))
    strays.feed(noise(9000))
    assert strays.count > 7000


def test_a_file_is_looked_at_up_to_a_place(tmp_path: Path) -> None:
    """In parts; the rest at the end. Looking at it once more changes nothing."""
    path = tmp_path / "it.ts"
    path.write_bytes(packets(1000) + noise(2 * PART_BYTES) + packets(10))
    strays = FileStrays(str(path))
    strays.look(1000 * PACKET_BYTES)
    assert strays.count == 0
    strays.look(1000 * PACKET_BYTES + 2 * PART_BYTES)
    assert strays.count > PART_BYTES
    strays.look(None)
    strays.look(None)
    strays.close()
    assert strays.count == pytest.approx(2 * PART_BYTES, abs=PACKET_BYTES)


def test_a_file_that_cannot_be_looked_at_has_none(tmp_path: Path) -> None:
    """The one that opens it to read it says why it cannot."""
    for path in (tmp_path / "missing.ts", tmp_path):
        strays = FileStrays(str(path))
        strays.look(10 * PART_BYTES)
        strays.look(None)
        assert strays.count == 0
        strays.close()
