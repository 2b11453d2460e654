"""Growing and rotating logs are followed: every line once, whatever a file is called by now."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from pathlib import Path

import pytest

from tests.analytics.watch.made import NOW_US, Clock, append, line, loop
from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.lines import Reading, UnknownFormat
from tricklecast.analytics.store.store import Position
from tricklecast.analytics.watch import followed as module
from tricklecast.analytics.watch.followed import Followed, Piece, is_log
from tricklecast.analytics.watch.rolling import Roller

NGINX = '192.0.2.1 - - [09/Oct/2025:08:53:20 +0000] "GET /film/{} HTTP/1.1" 404 0 "-" "player/1"'


def lines_of(pieces: list[Piece]) -> list[str]:
    """The lines of pieces."""
    return [each.decode() for piece in pieces for each in piece.block.split(b"\n") if each]


class Following:
    """Logs that are followed, a clock, and the positions that a store would have."""

    def __init__(self, *logs: Path, earliest: bool = True, positions: list[Position] | None = None) -> None:
        self.clock = Clock()
        self.logs = Followed(
            [str(log) for log in logs],
            positions=positions or [],
            earliest=earliest,
            clock=self.clock,
            wall_us=self.clock.wall_us,
        )
        self.positions = {(one.inode, one.head): one for one in positions or []}

    def read(self) -> list[str]:
        """The lines that were added."""
        self.clock.now_s += 2.0
        found = lines_of(self.logs.read())
        changed, gone = self.logs.positions()
        self.positions |= {(one.inode, one.head): one for one in changed}
        for each in gone:
            del self.positions[each]
        return found

    def restarted(self, *logs: Path) -> Following:
        """Another process that goes on."""
        return Following(*logs, positions=list(self.positions.values()))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log with three lines."""
    path = tmp_path / "access.jsonl"
    append(path, loop(3))
    return path


def test_lines_are_read_once_as_they_come(log: Path) -> None:
    """Each look gives what was added since the last one; half a line waits for its end."""
    followed = Following(log)
    assert followed.read() == loop(3)
    assert followed.read() == []
    whole = line(9)
    with log.open("a") as file:
        file.write(whole[:20])
    assert followed.read() == []
    with log.open("a") as file:
        file.write(whole[20:] + "\n")
    assert followed.read() == [whole]


def test_a_first_run_begins_behind_what_is_there(log: Path) -> None:
    """Without ``earliest`` only new lines count, and a line that is half written is one of them."""
    whole = line(9)
    with log.open("a") as file:
        file.write(whole[:20])
    followed = Following(log, earliest=False)
    with log.open("a") as file:
        file.write(whole[20:] + "\n")
    assert followed.read() == [whole]


def test_a_rename_neither_loses_nor_doubles_a_line(log: Path) -> None:
    """What was written just before a rotation is read from the renamed file."""
    followed = Following(log)
    followed.read()
    append(log, loop(2, 10))
    log.rename(log.with_name("access.jsonl.1"))
    append(log, loop(2, 20))
    assert sorted(followed.read() + followed.read()) == sorted(loop(2, 10) + loop(2, 20))
    assert followed.read() == []


def test_copy_and_truncate_neither_loses_nor_doubles_a_line(log: Path) -> None:
    """The copy is known by its first line and the bytes before the position, and read on from there."""
    followed = Following(log)
    followed.read()
    append(log, loop(2, 10))
    shutil.copy(log, log.with_name("access.jsonl.1"))
    log.write_text("")
    append(log, loop(2, 20))
    assert sorted(followed.read() + followed.read()) == sorted(loop(2, 10) + loop(2, 20))
    restarted = followed.restarted(log)
    assert restarted.read() == []


def test_a_copy_that_is_compressed_is_ignored(log: Path) -> None:
    """An old log in gz is no log that grows, in a folder or beside a file."""
    followed = Following(log, log.parent)
    followed.read()
    with gzip.open(log.with_name("access.jsonl.1.gz"), "wt") as file:
        file.write("\n".join(loop(3)))
    assert followed.read() == []
    assert not is_log("access.jsonl.1.gz")


def test_a_restart_goes_on_where_it_was_killed(log: Path) -> None:
    """Also in a file that was renamed meanwhile, and with a new one in its place."""
    followed = Following(log)
    followed.read()
    append(log, loop(2, 10))
    log.rename(log.with_name("access.jsonl.1"))
    append(log, loop(2, 20))
    assert sorted(followed.restarted(log).read()) == sorted(loop(2, 10) + loop(2, 20))


def test_every_format_is_recognised(tmp_path: Path) -> None:
    """A folder may have logs of several formats; what is no log is told as a problem."""
    append(tmp_path / "server.jsonl", loop(2))
    append(tmp_path / "nginx.log", [NGINX.format(1)])
    append(tmp_path / "other.log", ["no log at all"])
    followed = Following(tmp_path)
    formats = {Path(piece.path).name: piece.form.name for piece in followed.logs.read()}
    assert formats == {"server.jsonl": "tricklecast", "nginx.log": "combined"}
    assert list(followed.logs.problems) == [str(tmp_path / "other.log")]


def test_a_deleted_file_is_told_from_one_that_has_not_begun(log: Path) -> None:
    """Both are waited for; what was followed does not begin, it has gone."""
    followed = Following(log, log.with_name("later.jsonl"))
    followed.read()
    log.unlink()
    followed.read()
    assert {Path(path).name: why for path, why in followed.logs.problems.items()} == {
        "access.jsonl": "the file is gone; waiting for a new one",
        "later.jsonl": "there is no such file yet",
    }
    append(log, loop(2, 10))
    assert followed.read() == loop(2, 10)
    assert log not in map(Path, followed.logs.problems)


def test_a_named_file_of_no_format_is_an_error(tmp_path: Path) -> None:
    """It is said at once, rather than that there were no storms."""
    append(tmp_path / "other.log", ["no log at all"])
    with pytest.raises(UnknownFormat, match="cannot tell the format"):
        Following(tmp_path / "other.log").read()


def test_a_log_that_cannot_be_followed_is_an_error(tmp_path: Path) -> None:
    """A folder that is not there, a URL, a compressed file; a file that is not there yet is waited for."""
    with pytest.raises(BadInput, match="no such log"):
        Following(tmp_path / "nowhere")
    with pytest.raises(BadInput, match="cannot watch"):
        Followed(["s3a://bucket/logs"])
    (tmp_path / "access.log.gz").touch()
    with pytest.raises(BadInput, match="does not grow"):
        Following(tmp_path / "access.log.gz")
    followed = Following(tmp_path / "later.jsonl")
    assert followed.read() == []
    append(tmp_path / "later.jsonl", loop(1))
    assert followed.read() == loop(1)


def test_a_line_that_is_too_long_is_skipped_and_counted(log: Path) -> None:
    """However long it is, what follows it is read."""
    append(log, ["x" * 2_500_000, line(9)])
    followed = Following(log)
    pieces = list(followed.logs.read())
    assert lines_of(pieces) == [*loop(3), line(9)]
    assert sum(piece.too_long for piece in pieces) == 1


def test_logs_that_wait_are_read_in_the_order_of_their_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever they are called; what is written meanwhile comes last, and then as it is written."""
    monkeypatch.setattr(module, "PIECE", 1_000)
    monkeypatch.setattr(module, "BATCH", 1_000)
    for name, begin_s in (("a", 20.0), ("b", 0.0), ("c", 10.0)):
        append(tmp_path / f"{name}.jsonl", loop(100, begin_s, 0.05, client=name))
        os.utime(tmp_path / f"{name}.jsonl", ns=(NOW_US * 1000, NOW_US * 1000))
    followed, roller, clients = Following(tmp_path), Roller(Reading()), list[str]()
    while pieces := followed.logs.read(roller.times):
        assert followed.logs.past_us is not None
        clients += [json.loads(each)["client"] for each in lines_of(pieces)]
    assert clients == ["b"] * 100 + ["c"] * 100 + ["a"] * 100
    append(tmp_path / "c.jsonl", loop(2, 90.0))
    followed.clock.now_s += 2.0
    assert len(lines_of(followed.logs.read(roller.times))) == 2
    assert followed.logs.past_us is None
