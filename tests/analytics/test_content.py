"""What the bytes of files say before Spark reads them."""

from __future__ import annotations

import bz2
import gzip
import hashlib
from pathlib import Path

import pytest

from tricklecast.analytics import content
from tricklecast.analytics.content import (
    MAX_UNFINISHED,
    duplicates_among,
    has_repeated_line,
    is_damaged,
    unfinished_line,
)


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


def test_repeated_lines(tmp_path: Path) -> None:
    """In one file, over several, compressed, cut; blank lines, Parquet and what is no file are none."""
    lines = [b'{"a":%d}\n' % number for number in range(5)]

    def repeated(**files: list[bytes]) -> bool:
        names = []
        for name, written in files.items():
            names.append(str(tmp_path / name.replace("_", ".")))
            data = b"".join(written)
            Path(names[-1]).write_bytes(gzip.compress(data)[:-4] if name.endswith("gz") else data)
        return has_repeated_line([*names, "s3a://bucket/log"])

    assert not repeated(a=lines, b=[b"\n", b"\n", b'{"b":1}'])
    assert repeated(a=[*lines, lines[2]])
    assert repeated(a=lines, b=[lines[4].strip()])
    assert repeated(a=lines, b_gz=[b"{}\n", lines[0], b"{}"])
    assert not repeated(a_parquet=[*lines, *lines])


def test_lines_are_compared_only_as_far_as_it_costs_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond so many bytes or lines nothing is said."""
    log = tmp_path / "a"
    log.write_bytes(b"".join(b"%d\n" % number for number in range(100)) + b"7\n")
    assert has_repeated_line([str(log)])
    for limit in ("MAX_COMPARED", "MAX_COMPARED_LINES"):
        with monkeypatch.context() as patched:
            patched.setattr(content, limit, 50)
            assert not has_repeated_line([str(log)])
