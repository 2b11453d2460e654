"""The watch on Spark Structured Streaming: batches are judged in the time of their lines, once each."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.analytics.watch.made import NOW_US, Clock, line, loop, rules
from tricklecast.analytics import stream
from tricklecast.analytics.errors import AnalyticsError, BadInput, SparkUnavailable
from tricklecast.analytics.lines import find_logs
from tricklecast.analytics.lines.embedded import read_lines
from tricklecast.analytics.scan import embedded
from tricklecast.analytics.spark import scan
from tricklecast.analytics.spark import stream as module
from tricklecast.analytics.spark.stream import LATE_S, MAX_PROBLEMS, Batch, Stream, StreamRequest, run
from tricklecast.analytics.store.store import Store

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
    from pyspark.sql import SparkSession


def rolled(folder: Path, *lines: str) -> pa.Table:
    """The roll-up of some lines, as executors make it."""
    log = folder / "lines.jsonl"
    log.write_text("".join(f"{each}\n" for each in lines))
    with embedded.connect(0) as connection:
        read_lines(connection, find_logs([str(log)]))
        embedded.roll_up(connection)
        return connection.sql("FROM rollup").to_arrow_table()


class Streamed:
    """A stream without Spark, whose machine has a clock of its own."""

    def __init__(self, folder: Path, store: Store) -> None:
        self.folder, self.store, self.clock, self.number = folder, store, Clock(), -1
        self.request = StreamRequest(("logs",), state=folder / "state")
        self.restart()

    def restart(self) -> None:
        """Begins with what the store knows."""
        self.stream = Stream(self.request, self.store, ["told"], self.clock.wall_us)
        self.stream.judge.window.planned = rules()

    def batch(self, *lines: str, after_s: float = 0.0) -> list[tuple[str, str]]:
        """Gives one batch of lines, and the news: status and client."""
        self.clock.now_s += after_s
        self.number += 1
        return self.again(*lines)

    def again(self, *lines: str) -> list[tuple[str, str]]:
        """Gives the last batch once more."""
        batch = Batch(rolled(self.folder, *lines), len(lines))
        alerts = self.stream.batch(self.number, lambda: batch)
        assert all(each["told_us"] == self.clock.wall_us() for each in alerts), "when it was made, not of when it tells"
        return told(alerts)

    def idle(self, s: float) -> list[tuple[str, str]]:
        """Lets time pass without a line."""
        self.clock.now_s += s
        return told(self.stream.idle())


def told(alerts: Any) -> list[tuple[str, str]]:
    """Status and client of alerts."""
    return [(each["status"], each["incident"]["clients"][0]) for each in alerts]


@pytest.fixture
def store(tmp_path: Path) -> Any:
    """An empty store."""
    with Store(tmp_path / "state") as store:
        yield store


@pytest.fixture
def streamed(tmp_path: Path, store: Store) -> Streamed:
    """A stream that nothing has come to."""
    return Streamed(tmp_path, store)


# --- time -------------------------------------------------------------------------------------------------------------


def test_a_storm_is_told_once_and_is_over_when_its_server_has_later_lines(streamed: Streamed) -> None:
    """Lines of another server say nothing about it, however much later they are; time without lines does at last."""
    assert streamed.batch(*loop(6), after_s=1) == []
    assert streamed.batch(*loop(6, 0.3), after_s=10) == [("firing", "player-1")]
    assert streamed.batch(*loop(40, 0.6), after_s=10) == []
    other = {"node": "edge-2", "client": "viewer", "status": 200}
    assert streamed.batch(*[line(at_s, **other) for at_s in (30.0, 31.0)], after_s=10) == []
    assert streamed.batch(line(12.0, client="viewer"), after_s=10) == [], "within the trigger's interval"
    assert streamed.batch(*[line(at_s, client="viewer") for at_s in (40.0, 41.0, 42.0)]) == [("resolved", "player-1")]
    assert streamed.batch(*loop(10, 50, client="b"), after_s=10) == [("firing", "b")]
    assert streamed.idle(LATE_S) == []
    assert streamed.idle(30) == [("resolved", "b")]
    assert streamed.idle(60) == []


def test_the_lines_of_a_day_are_judged_in_their_own_time(streamed: Streamed) -> None:
    """What began and ended long ago is told to be both; what goes on at their end is not over."""
    streamed.clock.now_s += 86_400
    quiet = [line(at_s, client=f"c{at_s}", status=200) for at_s in range(0, 3600, 60)]
    news = streamed.batch(*loop(20), *quiet, *loop(200, 3590, client="b"))
    assert sorted(news) == [("firing", "b"), ("firing", "player-1"), ("resolved", "player-1")]
    assert streamed.stream.now_us < NOW_US + 3601 * 1_000_000
    assert streamed.batch(*loop(20, 3600, client="b")) == []
    assert streamed.batch(*[line(at_s, status=200) for at_s in range(7000, 7200, 10)]) == [("resolved", "b")]


def test_lines_of_one_server_may_come_late(streamed: Streamed) -> None:
    """A storm is found that lies in them and before what is known, in parts, and ends in its own time."""
    now = [line(600 + at_s, status=200, client="viewer") for at_s in range(10)]
    assert streamed.batch(*now, after_s=610) == []
    late: dict[str, Any] = {"node": "edge-2", "client": "late"}
    assert streamed.batch(*loop(6, 10, **late), after_s=10) == []
    assert streamed.batch(*loop(6, 10.3, **late), after_s=10) == [("firing", "late")]
    after = [line(40 + at_s, node="edge-2", status=200, client="viewer") for at_s in range(3)]
    assert streamed.batch(*after, after_s=10) == [("resolved", "late")]


def test_no_clock_of_a_log_silences_or_ends_anything(streamed: Streamed) -> None:
    """Neither one line from the future, nor a server that is ahead or behind by minutes."""
    assert streamed.batch(*loop(20), line(500), after_s=1) == [("firing", "player-1")]
    ahead: dict[str, Any] = {"node": "edge-2", "client": "ahead"}
    behind: dict[str, Any] = {"node": "edge-3", "client": "behind"}
    assert streamed.batch(*loop(20, 401, **ahead), *loop(20, 1), after_s=1) == [("firing", "ahead")]
    assert streamed.batch(*loop(20, -900, **behind), *loop(20, 2), *loop(20, 402, **ahead), after_s=1) == [
        ("firing", "behind")
    ]
    for turn in range(3, 5):
        assert streamed.batch(*loop(20, turn), *loop(20, 400 + turn, **ahead), after_s=1) == []
        assert streamed.stream.now_us <= streamed.clock.wall_us()


def test_a_batch_that_comes_again_adds_nothing(streamed: Streamed) -> None:
    """Neither to the process that has judged it, nor to the next; nor is it read."""
    assert streamed.batch(*loop(6), after_s=1) == []
    assert streamed.again(*loop(6)) == []
    streamed.restart()
    streamed.stream.batch(streamed.number, lambda: pytest.fail("it was read"))
    [(status, _)] = streamed.batch(*loop(4, 0.3))
    assert status == "firing"
    assert [each["incident"]["n"] for _, _, each in streamed.store.waiting("told", 9)] == [10]
    streamed.restart()
    assert streamed.batch(*loop(10, 0.5)) == []
    with pytest.raises(BadInput, match="another watch"):
        Stream(replace(streamed.request, logs=("other",)), streamed.store, [])
    streamed.stream.follow("one")
    with pytest.raises(BadInput, match="the checkpoint is not the one of this state"):
        streamed.stream.follow("other")


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_rows_beyond_the_bound_are_left_out_and_counted(tmp_path: Path) -> None:
    """What cannot be a storm loses its clients, then what has the fewest lines goes; events stay."""
    served = {"status": 200, "rseq": 3, "next_seq": 4, "bytes_out": 900}
    crowd = [line(at, client=f"c{at}", channel=f"x{at}", **served) for at in range(50)]
    few = [line(at, client=f"f{at}") for at in range(30)]
    event = json.dumps({"v": 1, "ts_us": NOW_US, "node": "edge-1", "kind": "event", "event": "server_start"})
    rows = rolled(tmp_path, *crowd, *few, *loop(20), event)
    found = [row for batch in scan._fewer(iter(rows.to_batches()), most=12) for row in batch.to_pylist()]
    left_out = [row["n"] for row in found if row["answer"] == scan.LEFT_OUT]
    told = [row for row in found if row["answer"] != scan.LEFT_OUT]
    assert len(told) == 12
    assert "player-1" in {row["client"] for row in told}
    assert [row["event"] for row in told if row["answer"] == "event"] == ["server_start"]
    assert left_out == [101 - sum(row["n"] for row in told)]


def test_problems_and_servers_are_remembered_up_to_a_bound(streamed: Streamed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The latest ones stay."""
    monkeypatch.setattr(module, "MAX_NODES", 2)
    streamed.batch(*[line(at, node=f"edge-{at}") for at in range(5)], after_s=5)
    assert len(streamed.stream._off_us) == 2
    for number in range(1, 4):
        names = [f"{number}-{each}" for each in range(MAX_PROBLEMS)]
        batch = Batch(problems=dict.fromkeys(names, "x"))
        streamed.stream.batch(number, partial(replace, batch))
    assert list(streamed.stream.problems) == names


@pytest.mark.long
def test_a_day_leaves_no_more_than_an_hour(streamed: Streamed) -> None:
    """Rows, incidents and pages of the state are as many after 24 hours of storms as after three."""
    sizes = []
    for turn in range(24 * 10):
        begin_s = 360.0 * turn
        viewers = [
            line(begin_s + at, client=f"v{turn}-{at}", status=200, bytes_out=9, rseq=at, next_seq=at + 1)
            for at in range(50)
        ]
        streamed.batch(*viewers, *loop(20, begin_s, client=f"storm-{turn % 97}"), after_s=360)
        if turn % 10 == 9:
            streamed.store.delivered(number for number, _, _ in streamed.store.waiting("told", 10_000))
            pages, free = (streamed.store._all(f"PRAGMA {name}")[0][0] for name in ("page_count", "freelist_count"))
            rows = streamed.stream.judge.window.rows().num_rows
            sizes.append((rows, pages - free, len(streamed.store.incidents()), len(streamed.stream.problems)))
    for measure in zip(*sizes, strict=True):
        assert max(measure[3:]) <= 1.2 * max(measure[:3]), sizes
    print(f"after 3 h, after 24 h: {sizes[2]}, {sizes[-1]} (rows, pages, incidents, problems)")


# --- with Spark -------------------------------------------------------------------------------------------------------


class Followed:
    """A folder, and a command that reads what is new in it and ends."""

    def __init__(self, folder: Path) -> None:
        self.logs, self.state = folder / "logs", folder / "state"
        self.logs.mkdir()

    def once(self, *names: str, **options: Any) -> tuple[list[tuple[str, str]], str]:
        """What it tells, and what it says of itself."""
        out, err = StringIO(), StringIO()
        request = StreamRequest((str(self.logs),), state=self.state, json=True, once=True, earliest=True)
        run(replace(request, **options), out=out, err=err)
        return told(map(json.loads, out.getvalue().splitlines())), err.getvalue()


def nginx(n: int) -> str:
    """Lines of nginx: one client is refused all the time."""
    text = '203.0.113.9 - - [09/Oct/2025:08:53:{:02d} +0000] "GET /tape/7 HTTP/1.1" 503 9 "-" "vlc/3"\n'
    return "".join(text.format(20 + turn // 10) for turn in range(n))


def test_a_folder_of_several_formats_with_damage(tmp_path: Path, spark: SparkSession) -> None:
    """Each file is read as the report reads it; what cannot be read is named and counted, and a kill repeats none."""
    followed = Followed(tmp_path)
    day = followed.logs / "dt=2025-10-09"
    day.mkdir()
    (day / "a.jsonl").write_text("\n".join([*loop(6), "{broken", ""]))
    (followed.logs / "proxy.log").write_text(nginx(120))
    packed = gzip.compress("\n".join(loop(4, 0.3)).encode() + b"\n" + 9_000 * b"x \n")
    (followed.logs / "b.jsonl.gz").write_bytes(packed[:-9])
    (followed.logs / "notes.txt").write_text("nothing\nof\ninterest\n")
    (followed.logs / "c.jsonl.tmp").write_text("\n".join(loop(90, client="unfinished")))
    news, said = followed.once()
    assert sorted(news) == [("firing", "203.0.113.9#c6d1e40d"), ("firing", "player-1")]
    assert "notes.txt: its format is not known" in said
    assert "b.jsonl.gz: it is damaged, and was read up to there" in said
    assert "1 files could not be read, or are of no known format" in said
    assert "lines could not be read" in said
    # Killed before Spark noted that it was done:
    commits = followed.state / "checkpoint" / "commits"
    last = max(commits.iterdir(), key=lambda file: file.name)
    last.unlink()
    (commits / f".{last.name}.crc").unlink()
    more = [*loop(6, 0.6), *loop(12, 0.6, client="b", channel="other")]
    (followed.logs / "d.jsonl").write_text("\n".join(more) + "\n")
    news, said = followed.once()
    assert news == [("firing", "b")]
    assert "storms stream: 18 lines read, 1 incident" in said
    with pytest.raises(BadInput, match="the state of another watch"):
        followed.once(logs=(str(day),))
    with pytest.raises(BadInput, match="the checkpoint is not the one of this state"):
        followed.once(checkpoint=str(tmp_path / "other"))


def test_files_from_before_the_first_run_are_passed_over_and_counted(tmp_path: Path, spark: SparkSession) -> None:
    """A first run begins with what comes, as the watch does, also if it was killed in the middle of its first note."""
    followed = Followed(tmp_path)
    (followed.state / "checkpoint/offsets").mkdir(parents=True)
    (followed.state / "checkpoint/offsets/.0.5a1f.tmp").write_text("v1\n{")
    (followed.logs / "a.jsonl").write_text("\n".join(loop(20)))
    news, said = followed.once(earliest=False)
    assert news == []
    assert "1 files are older than this watch, and were passed over (--start earliest)" in said


def test_a_frame_of_lines(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Python API watches lines that somebody else has brought, and bounds what comes to the driver."""
    monkeypatch.setattr(module, "BATCH_ROWS", 3)
    (tmp_path / "logs").mkdir()
    many = [line(1, client=f"c{at}") for at in range(40)]
    (tmp_path / "logs" / "a.txt").write_text("\n".join([*loop(20), *many]))
    lines = spark.readStream.text(str(tmp_path / "logs"))
    stream(lines, state=tmp_path / "state", json=True, once=True)
    said = capsys.readouterr()
    assert told(map(json.loads, said.out.splitlines())) == [("firing", "player-1")]
    assert "lines were left out" in said.err
    assert "60 lines read, 1 incident" in said.err
    (tmp_path / "logs" / "b.txt").write_text("one line\nof no format\n")
    stream(lines, state=tmp_path / "state", json=True, once=True, format="tricklecast")
    assert "2 lines could not be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("sources", "error", "words"),
    [
        (["FOLDER/file"], BadInput, "is no folder: storms watch follows files that grow"),
        (["FOLDER/nowhere"], BadInput, "no such folder"),
        (["kafka://broker:9092"], BadInput, "is no topic: kafka://BROKER:9092"),
        (["FOLDER"], BadInput, "is in a folder that is followed"),
        (["FOLDER/logs", "kafka://broker:9092/logs"], BadInput, "run two"),
        (
            ["kafka://broker:9092/logs"],
            SparkUnavailable,
            r"--conf spark.jars.packages=org.apache.spark:spark-sql-kafka",
        ),
    ],
)
def test_sources_that_cannot_be_followed(
    tmp_path: Path, spark: SparkSession, sources: list[str], error: type[AnalyticsError], words: str
) -> None:
    """They are refused in words that say what to do."""
    (tmp_path / "file").touch()
    (tmp_path / "logs").mkdir()
    logs = tuple(source.replace("FOLDER", str(tmp_path)) for source in sources)
    with pytest.raises(error, match=words):
        run(StreamRequest(logs, state=tmp_path / "state", once=True), out=StringIO(), err=StringIO())
