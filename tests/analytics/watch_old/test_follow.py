"""Files that grow, rotate, shrink and disappear are followed byte by byte: no line is lost, none comes twice."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tricklecast.analytics.watch_old.follow import TOO_LONG, Follower
from tricklecast.analytics.watch_old.limits import WatchLimits
from tricklecast.analytics.watch_old.positions import Positions

LIMITS = WatchLimits(wait_s=0.0, chunk_bytes=256, batch_bytes=1024)


class Clock:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        """Lets it pass."""
        self.now += seconds


def follower(*logs: Path, limits: WatchLimits = LIMITS, clock: Clock | None = None) -> Follower:
    """A follower that never waits."""
    time = clock or Clock()
    return Follower([str(log) for log in logs], limits, lambda: 1_000.0 + time.now, time, time.sleep)


def drain(reader: Follower, since: Positions) -> tuple[bytes, Positions]:
    """All that can be read, and where it ends."""
    read = b""
    while True:
        blocks, end = reader.read(since)
        if end == since:
            return read, end
        read, since = read + b"".join(blocks), end


def append(path: Path, data: bytes) -> None:
    """Writes to the end of a file."""
    with path.open("ab") as file:
        file.write(data)


def test_latest_begins_behind_what_is_there(tmp_path: Path) -> None:
    """Only what is written from now on is read, from files that are there and from new ones."""
    append(tmp_path / "access.jsonl", b"old\n")
    reader = follower(tmp_path)
    start = reader.beginning(earliest=False)
    append(tmp_path / "access.jsonl", b"new\n")
    append(tmp_path / "other.log", b"other\n")
    read, _ = drain(reader, start)
    assert sorted(read.split()) == [b"new", b"other"]


def test_earliest_begins_at_the_beginning(tmp_path: Path) -> None:
    """What is there already is read, too."""
    append(tmp_path / "access.jsonl", b"old\n")
    reader = follower(tmp_path)
    assert drain(reader, reader.beginning(earliest=True))[0] == b"old\n"


def test_a_line_without_its_end_waits(tmp_path: Path) -> None:
    """Half a line is left until the other half is there."""
    log = tmp_path / "access.jsonl"
    reader = follower(tmp_path)
    start = reader.beginning(earliest=True)
    append(log, b"one\ntw")
    read, middle = drain(reader, start)
    append(log, b"o\n")
    assert (read, drain(reader, middle)[0]) == (b"one\n", b"two\n")


def test_rotation_loses_nothing(tmp_path: Path) -> None:
    """What was written before the rename is read under the new name, once, and before what came after it."""
    log = tmp_path / "access.jsonl"
    append(log, b'{"ts_us":1}\n')
    reader = follower(log)
    _, middle = drain(reader, reader.beginning(earliest=True))
    append(log, b'{"ts_us":2}\n')
    log.rename(tmp_path / "access-20251009T085320-0001.jsonl")
    append(log, b'{"ts_us":3}\n')
    assert drain(reader, middle)[0] == b'{"ts_us":2}\n{"ts_us":3}\n'


def test_a_restart_goes_on_after_rotation(tmp_path: Path) -> None:
    """Another process, with only the positions, finds the renamed file again."""
    log = tmp_path / "access.jsonl"
    append(log, b"one\n")
    first = follower(log)
    _, end = drain(first, first.beginning(earliest=True))
    append(log, b"two\n")
    log.rename(tmp_path / "access-20251009T085320-0001.jsonl")
    append(log, b"three\n")
    read, _ = drain(follower(log), Positions.from_json(end.as_json()))
    assert sorted(read.split()) == [b"three", b"two"]


def test_a_single_file_does_not_bring_its_neighbours(tmp_path: Path) -> None:
    """Other logs of the folder are not what was asked for."""
    append(tmp_path / "access.jsonl", b"mine\n")
    append(tmp_path / "access-other.jsonl", b"not mine\n")
    reader = follower(tmp_path / "access.jsonl")
    assert drain(reader, reader.beginning(earliest=True))[0] == b"mine\n"


def test_an_inode_that_is_used_again_is_another_file(tmp_path: Path) -> None:
    """A log cut to nothing and begun anew is read from its beginning."""
    log = tmp_path / "access.jsonl"
    append(log, b"first life\nfirst life\n")
    reader = follower(log)
    _, end = drain(reader, reader.beginning(earliest=True))
    os.truncate(log, 0)
    append(log, b"second\n")
    assert drain(reader, end)[0] == b"second\n"


def test_several_files_are_read_in_the_order_of_time(tmp_path: Path) -> None:
    """A backlog of many files is merged, a chunk at a time, by the time of its lines."""
    line = b'{"ts_us":%d,"node":"%b","x":"' + b"x" * 60 + b'"}\n'
    append(tmp_path / "a.jsonl", b"".join(line % (at, b"a") for at in range(10, 60, 10)))
    append(tmp_path / "b.jsonl", b"".join(line % (at, b"b") for at in range(15, 65, 10)))
    reader = follower(tmp_path)
    read, _ = drain(reader, reader.beginning(earliest=True))
    nodes = [part[:1].decode() for part in read.split(b'"node":"')[1:]]
    assert len(nodes) == 10
    assert nodes != sorted(nodes)


def test_a_batch_is_bounded(tmp_path: Path) -> None:
    """However long the backlog, one batch is no longer than it may be, but for the end of a chunk."""
    append(tmp_path / "access.jsonl", b"x" * 50 + b"\n" + (b"y" * 99 + b"\n") * 100)
    reader = follower(tmp_path)
    blocks, _ = reader.read(reader.beginning(earliest=True))
    assert 0 < sum(map(len, blocks)) <= LIMITS.batch_bytes + LIMITS.chunk_bytes
    assert reader.health.lag_bytes > 0


def test_a_line_too_long_is_skipped(tmp_path: Path) -> None:
    """A line of any length costs one chunk of memory, counts as one that is no record, and the next is read."""
    append(tmp_path / "access.jsonl", b"one\n" + b"x" * 5_000 + b"\ntwo\n")
    reader = follower(tmp_path)
    assert drain(reader, reader.beginning(earliest=True))[0] == b"one\n" + TOO_LONG + b"two\n"


@pytest.mark.parametrize("seed", range(3))
def test_a_batch_can_be_read_again(tmp_path: Path, seed: int) -> None:
    """Between two positions there is always the same, in another process as well, after rotation, at any cut."""
    log = tmp_path / "access.jsonl"
    reader, since = follower(log), Positions()
    for turn in range(6):
        append(log, b"%d %d\n" % (seed, turn) + b"z" * (97 * turn * (seed + 1)) + b"\nhalf")
        blocks, end = reader.read(since)
        if turn == 3:
            log.rename(tmp_path / "access-20251009T085320-0001.jsonl")
        again = follower(log).again(since, Positions.from_json(end.as_json()))
        assert b"".join(again) == b"".join(blocks)
        since = end


def test_a_file_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    """What is missing is said, by name; and it is read as soon as it is there."""
    log = tmp_path / "access.jsonl"
    reader = follower(log)
    start = reader.beginning(earliest=True)
    reader.read(start)
    assert reader.health.problems == {str(log): "no such file"}
    append(log, b"there\n")
    assert drain(reader, start)[0] == b"there\n"
    assert reader.health.problems == {}


def test_what_is_gone_before_it_was_read_is_said(tmp_path: Path) -> None:
    """A file deleted while it was not read to its end is counted as lost, once it is given up."""
    log = tmp_path / "access.jsonl"
    clock = Clock()
    append(log, b"a" * 200 + b"\n" + (b"b" * 99 + b"\n") * 50)
    reader = follower(tmp_path, clock=clock)
    _, middle = reader.read(reader.beginning(earliest=True))
    left = reader.health.lag_bytes
    log.unlink()
    reader.read(middle)
    assert reader.health.lost_bytes == 0
    clock.sleep(4_000)
    reader.read(middle)
    assert reader.health.lost_bytes == left > 0


def test_names_that_are_no_logs_are_left_alone(tmp_path: Path) -> None:
    """Compressed, hidden and unfinished files of a folder are not followed; folders in it are."""
    (tmp_path / "node-1").mkdir()
    for name in ("access.jsonl.gz", ".access.jsonl", "access.jsonl.tmp", "notes.txt"):
        append(tmp_path / name, b"no\n")
    for name in ("node-1/access.jsonl", "access.log.1"):
        append(tmp_path / name, b"yes\n")
    reader = follower(tmp_path)
    assert drain(reader, reader.beginning(earliest=True))[0] == b"yes\nyes\n"
