"""Logs become hours of Parquet: every line once, whatever happens to the files meanwhile."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.analytics.sources.lines import CADDY, OWN, TS_US, as_line
from tests.analytics.support.writer import write_lines
from tricklecast.analytics.durations import HOUR_US
from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.inputs import find_logs
from tricklecast.analytics.logs.compact import Compacted, compact, look_through
from tricklecast.analytics.logs.journal import held
from tricklecast.analytics.sources import Reading, read_logs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def line(hour: int, number: int, **fields: Any) -> bytes:
    """A line of an hour."""
    return as_line(OWN | {"ts_us": TS_US + hour * HOUR_US, "conn": number, "channel": f"film-{number % 3}"} | fields)


class Run:
    """Compacts into one folder."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self.out = folder / "out"
        self.rejects = folder / "rejects"

    def __call__(self, *logs: Path) -> Compacted | None:
        """Compacts; ``None`` if there was nothing new."""
        files = find_logs([str(log) for log in logs])
        with held(self.out) as work:
            todo = look_through(files, self.out)
            if not todo.pieces:
                return None
            return compact(self._spark, files, todo, self.out, work, Reading(), self.rejects)

    def files(self) -> dict[str, bytes]:
        """The hours, with their bytes."""
        return {str(path.parent.relative_to(self.out)): path.read_bytes() for path in self.out.glob("dt=*/hr=*/*")}

    def lines(self) -> Counter[tuple[int, int]]:
        """Hour and number of each line."""
        rows = read_logs(self._spark, find_logs([str(self.out)])).select("ts_us", "conn").collect()
        return Counter(((row["ts_us"] - TS_US) // HOUR_US, row["conn"]) for row in rows)


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> Run:
    """A folder to compact into."""
    return Run(spark, tmp_path)


def test_a_day_in_the_life(run: Run, tmp_path: Path) -> None:
    """Logs grow, are rotated and compressed, and come late: each line is in its hour, once."""
    path = tmp_path / "access.jsonl"
    first = [line(0, number) for number in range(50)] + [line(2, number) for number in range(10)]
    path.write_bytes(b"\n".join([*first, b"nonsense", line(1, 99, v=2), b'{"v":1,"ts_us":17']))
    done = run(path)
    assert done is not None
    assert (done.lines, done.rejected, done.hours) == (60, 2, 2)
    assert sorted(run.files()) == ["dt=2025-10-09/hr=08", "dt=2025-10-09/hr=10"]
    rejected = run.rejects.read_bytes().splitlines()
    assert rejected[0] == b"nonsense"
    assert json.loads(rejected[1])["v"] == 2

    before = run.files()
    assert run(path) is None
    assert run.files() == before

    late = [line(0, 1000), line(1, 1001)]
    rotated = tmp_path / "access-1.jsonl.gz"
    rotated.write_bytes(gzip.compress(b"\n".join([*first, b"nonsense", line(1, 99, v=2), *late]) + b"\n"))
    path.unlink()
    write_lines(path, [line(3, 2000)])
    done = run(path, rotated)
    assert done is not None
    assert (done.lines, done.rejected, done.hours) == (3, 0, 3)
    assert len(run.rejects.read_bytes().splitlines()) == 2
    wanted = [(0, number) for number in range(50)] + [(2, number) for number in range(10)]
    assert run.lines() == Counter([*wanted, (0, 1000), (1, 1001), (3, 2000)])
    assert run.files()["dt=2025-10-09/hr=10"] == before["dt=2025-10-09/hr=10"]


def test_hours_of_any_format(run: Run, tmp_path: Path) -> None:
    """A proxy's log and Parquet of ours are compacted as well; what compaction wrote is a log again."""
    write_lines(tmp_path / "caddy.log", [as_line(CADDY)])
    run(tmp_path / "caddy.log")
    again = Run(run._spark, tmp_path / "again")
    done = again(run.out)
    assert done is not None
    assert done.lines == 1
    (row,) = read_logs(run._spark, find_logs([str(again.out)])).collect()
    assert (row["channel"], row["status"], row["ts_us"]) == ("film", 404, TS_US)


def test_damaged_files_wait(run: Run, tmp_path: Path) -> None:
    """A cut archive may be in the middle of being copied: it is left out, and taken when it is whole."""
    whole = gzip.compress(b"\n".join(line(0, number) for number in range(1000)) + b"\n")
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(whole[:-100])
    files = find_logs([str(path)])
    assert look_through(files, run.out).left == (str(path),)
    assert run(path) is None
    path.write_bytes(whole)
    done = run(path)
    assert done is not None
    assert done.lines == 1000


def test_only_files_of_this_machine(tmp_path: Path) -> None:
    """What is elsewhere cannot be told from what was there before, and is refused."""
    with pytest.raises(BadInput, match="this machine"):
        look_through(find_logs(["s3a://bucket/logs"]), tmp_path)
