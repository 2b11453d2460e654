"""What the bytes of files say before Spark reads them."""

from __future__ import annotations

import bz2
import hashlib
from pathlib import Path

import pytest

from analytics.content import MAX_UNFINISHED, duplicates_among, is_damaged, unfinished_line


def write(path: Path, data: bytes) -> str:
    """Writes a file."""
    path.write_bytes(data)
    return str(path)


def test_copies(tmp_path: Path) -> None:
    """Files with the same bytes are told, all but the first; the same size or the same ends are not enough."""
    big = b"x" * 300_000
    other = big[:150_000] + b"y" + big[150_001:]
    contents = {"a": b"1", "b": b"2", "c": b"1", "d": big, "e": other, "f": big, "g": b"", "h": b"", "i": b"1"}
    names = {name: write(tmp_path / name, data) for name, data in contents.items()}
    assert duplicates_among(names.values()) == tuple(names[name] for name in "cfi")


@pytest.mark.parametrize("size", [1, 65_536, 200_000])
def test_unfinished_lines(size: int, tmp_path: Path) -> None:
    """What follows the last line's end is known by its checksum, however long it is; nothing, or space, is none."""
    tail = b"x" * size
    digest = hashlib.sha256(tail).hexdigest()
    assert unfinished_line(write(tmp_path / "a", b"line\n" + tail)) == digest
    assert unfinished_line(write(tmp_path / "b", tail)) == digest
    for data in (b"", b"\n", tail + b"\n", b"line\n  "):
        assert unfinished_line(write(tmp_path / "c", data)) is None
    assert unfinished_line(write(tmp_path / "d.gz", tail)) is None


def test_an_endless_line_is_none(tmp_path: Path) -> None:
    """A file without any line's end is not read into memory."""
    with (tmp_path / "a").open("wb") as file:
        file.truncate(MAX_UNFINISHED + 1_000_000)
    assert unfinished_line(str(tmp_path / "a")) is None


def test_damaged_bzip2(tmp_path: Path) -> None:
    """A cut archive, and one that is none, are told from a whole one."""
    whole = bz2.compress(b"{}\n" * 1000)
    assert not is_damaged(write(tmp_path / "a.bz2", whole))
    assert is_damaged(write(tmp_path / "b.bz2", whole[:-4]))
    assert is_damaged(write(tmp_path / "c.bz2", b"plain"))
