"""The last lines of files, and what is added to them."""

from __future__ import annotations

import bz2
import gzip
from itertools import islice
from pathlib import Path

import pytest

from tricklecast.analytics.logs.follow import MAX_LINE, Follower, follow, last_lines


def every(line: bytes) -> bool:
    """Wants all lines."""
    return True


@pytest.mark.parametrize("size", [1, 7, 100_000])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_last_lines(size: int, end: bytes, tmp_path: Path) -> None:
    """The last lines come in their order, however long they are; blank ones and an unfinished one do not count."""
    path = tmp_path / "a.jsonl"
    lines = [f"{number} ".encode() + b"x" * size for number in range(20)]
    path.write_bytes(end.join([*lines[:10], b"", *lines[10:]]) + end + b"unfinished")
    found, at = last_lines(str(path), 12, every)
    assert found == lines[8:]
    assert at == path.stat().st_size - len(b"unfinished")
    assert last_lines(str(path), 100, every)[0] == lines
    assert last_lines(str(path), 0, every)[0] == []
    assert last_lines(str(path), 2, lambda line: line.startswith(b"1"))[0] == [lines[18], lines[19]]


def test_last_lines_of_odd_files(tmp_path: Path) -> None:
    """Nothing, only an unfinished line, compressed files, and a line that is too long."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"")
    assert last_lines(str(path), 5, every) == ([], 0)
    path.write_bytes(b"unfinished")
    assert last_lines(str(path), 5, every) == ([], 0)
    path.write_bytes(b"x" * (3 * MAX_LINE) + b"\nlast\n")
    found, _ = last_lines(str(path), 5, every)
    assert [len(line) for line in found] == [MAX_LINE, 4]
    for name, data in (("b.gz", gzip.compress(b"1\n2\n3\n")), ("c.bz2", bz2.compress(b"1\n2\n3\n"))):
        (tmp_path / name).write_bytes(data)
        assert last_lines(str(tmp_path / name), 2, every)[0] == [b"2", b"3"]


def test_growth_and_rotation(tmp_path: Path) -> None:
    """Lines come when they are whole, from the old file to its end and then from the new one."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"old\n")
    follower = Follower(str(path), at=4)
    assert follower.read() == []
    with path.open("ab") as file:
        file.write(b"1\n\n2\r\nhal")
        file.flush()
        assert follower.read() == [b"1", b"2"]
        path.rename(tmp_path / "a-1.jsonl")
        assert follower.read() == []
        file.write(b"f\n3\n")
        file.flush()
        assert follower.read() == [b"half", b"3"]
    path.write_bytes(b"4\n")
    assert follower.read() == [b"4"]
    path.write_bytes(b"")  # somebody empties it
    assert follower.read() == []
    with path.open("ab") as file:
        file.write(b"5\n")
    assert follower.read() == [b"5"]
    follower.close()


def test_a_file_that_is_replaced_in_the_middle_of_a_line(tmp_path: Path) -> None:
    """What was left without an end is shown as it is: its end will not come."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"1\ncut")
    follower = Follower(str(path))
    assert follower.read() == [b"1"]
    path.rename(tmp_path / "a-1.jsonl")
    path.write_bytes(b"2\n")
    assert follower.read() == [b"cut", b"2"]
    follower.close()


def test_many_files_for_ever(tmp_path: Path) -> None:
    """Files are read in turn, and slept over only when none has anything new; one that is missing may yet come."""
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    first.write_bytes(b"1\n")

    def sleep(seconds: float) -> None:
        second.write_bytes(b"2\n")

    followers = [Follower(str(first)), Follower(str(second))]
    assert list(islice(follow(followers, sleep), 2)) == [b"1", b"2"]
    for follower in followers:
        follower.close()
