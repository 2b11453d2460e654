"""The table: a report with it is the one without it, whatever happened to logs, table and run."""

from __future__ import annotations

import gzip
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from typer.testing import CliRunner

from tests.analytics.lines.traffic import START_US, as_line
from tests.analytics.store.killed import silent
from tests.analytics.support.scenarios import write_all
from tricklecast.analytics.errors import AnalyticsError, BadInput, CannotWrite
from tricklecast.analytics.lines import ALWAYS, LogFiles, Reading, Window, find_logs
from tricklecast.analytics.lines.embedded import read_lines
from tricklecast.analytics.pipeline.request import ReportRequest, ReportResult, SparkOptions
from tricklecast.analytics.pipeline.run import make
from tricklecast.analytics.report.json import as_json
from tricklecast.analytics.rules.params import Params
from tricklecast.analytics.scan import embedded
from tricklecast.analytics.spark.table import Bucket, OnSpark, spark_rows
from tricklecast.analytics.store.place import Folder
from tricklecast.analytics.store.table import Embedded, Table, TableLogs, embedded_rows
from tricklecast.app.cli import cli

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SLICES = 4
NODES = {"not_found_drip", "not_found_loop", "abandoned_each_second", "same_segment_loop", "honours_retry_after"}
"""Scenarios in the logs, each on a server of its own."""
NOW_US = 1_900_000_000_000_000


@cache
def own() -> list[bytes]:
    """Slices of a log of our own, with storms that go on from one to the next, and lines that cannot be read."""
    some = (line for line in write_all(5)[0] if json.loads(line)["node"] in NODES)
    rows = sorted(some, key=lambda line: json.loads(line)["ts_us"])
    size = len(rows) // SLICES
    slices = [rows[place * size : (place + 1) * size] for place in range(SLICES)]
    slices[1].insert(7, "garbage")
    slices[2].insert(7, slices[2][8].replace('"kind":"exchange"', '"kind":"nonsense"'))
    return ["".join(f"{line}\n" for line in rows).encode() for rows in slices]


def proxied(first: int, last: int) -> bytes:
    """A proxy's log in which a client loops and every request has an id; logs that overlap share ids."""
    rows = [
        {
            "msec": START_US / 1e6 + number / 4,
            "request_method": "GET",
            "request_uri": "/trickle/film/1",
            "status": 404,
            "request_id": f"{number:032x}",
            "remote_addr": "192.0.2.7",
        }
        for number in range(first, last)
    ]
    return b"".join(as_line(row) + b"\n" for row in rows)


@dataclass(frozen=True)
class Run:
    """What a run over a table has found, short of the rules."""

    table: Table
    told: TableLogs
    rows: list[tuple[Any, ...]]


def ran(logs: Path | list[Path], place: Path, window: Window = ALWAYS, keep_us: int | None = None, **how: Any) -> Run:
    """Adds logs to a table, and reads it."""
    reading, generic = Reading(how.get("format", "auto"), window=window), how.get("generic", False)
    files = find_logs([str(logs)] if isinstance(logs, Path) else list(map(str, logs))) if logs else LogFiles(())
    table = Table(Folder(str(place)), keep_us)
    with embedded.connect(0) as con:
        if logs:
            table.add(files, reading, generic, Embedded(con, files, reading, generic, how.get("now_us", NOW_US)))
        told = embedded_rows(con, table, window, files)
        return Run(table, told, con.execute("FROM rollup ORDER BY ALL").fetchall())


def same(logs: Path | list[Path], place: Path) -> Run:
    """Holds a run with a table to one without, row for row."""
    run, files = ran(logs, place), find_logs([str(logs)] if isinstance(logs, Path) else list(map(str, logs)))
    with embedded.connect(0) as con:
        read = read_lines(con, files, Reading(), NOW_US)
        embedded.roll_up(con, latest_us=NOW_US)
        assert run.rows == con.execute("FROM rollup ORDER BY ALL").fetchall()
    assert run.told.counts == replace(read.counts, bad_timed=run.told.counts.bad_timed)
    assert run.told.names == tuple(name for name in read.recognised.names if Path(name).stat().st_size)
    assert run.told.strange == read.recognised.strange
    assert run.told.damaged == read.damaged
    return run


def request(logs: Path, place: Path | str | None, window: Window = ALWAYS, **more: Any) -> ReportRequest:
    table = None if place is None else str(place)
    return ReportRequest(find_logs([str(logs)], window), Reading(window=window), Params(), table=table, **more)


def said(one: ReportRequest) -> dict[str, Any]:
    """The report."""
    return plain(make(one, silent))


def plain(made: ReportResult) -> dict[str, Any]:
    """A report without what only a table remembers."""
    report: dict[str, Any] = json.loads(as_json(made.report))
    for incident in report["incidents"]:
        del incident["history"]
    return report


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    for number, content in enumerate(own()):
        (folder / f"a-{number}.jsonl").write_bytes(content)
    return folder


@pytest.fixture
def few(tmp_path: Path) -> Path:
    """Two logs with the first lines of two slices each."""
    folder = tmp_path / "logs"
    folder.mkdir()
    for number, content in enumerate(own()[:2]):
        (folder / f"a-{number}.jsonl").write_bytes(content[: content.index(b"\n", 15_000) + 1])
    return folder


def test_the_report_is_the_one_without_a_table(logs: Path, tmp_path: Path) -> None:
    """With lines of incidents, also when all is known; a window is of whole minutes, and logs are added whole."""
    state = tmp_path / "state"
    expected = said(request(logs, None))
    minute = expected["figures"]["since_us"] // 60_000_000 * 60_000_000 + 60_000_000
    assert any(one["lines"] for one in expected["incidents"])
    cut = said(request(logs, None, Window(minute, minute + 600_000_000)))
    off = said(request(logs, state, Window(minute + 1, minute + 599_000_001)))
    for report in (cut, off):
        del report["quality"], report["inputs"], report["verdict"]["warning"]
    assert off == cut
    made = make(request(logs, state), silent)
    assert made.notes == (f"4 files known from {state}, 0 read",)
    assert plain(made) == expected


def test_what_is_known_is_not_read_again(logs: Path, tmp_path: Path) -> None:
    """Neither after a rotation or a compression; a log that has grown is read, and only that."""
    state = tmp_path / "state"
    assert same(logs, state).table.notes == [f"0 files known from {state}, 4 read"]
    (logs / "a-1.jsonl").rename(logs / "a-1.jsonl.1")
    (logs / "a-2.jsonl.gz").write_bytes(gzip.compress((logs / "a-2.jsonl").read_bytes()))
    (logs / "a-2.jsonl").unlink()
    assert same(logs, state).table.notes == [f"4 files known from {state}, 0 read"]
    with patch("tricklecast.analytics.store.table.open_log", side_effect=AssertionError):
        assert same(logs, state).table.notes == [f"4 files known from {state}, 0 read"]
    with (logs / "a-0.jsonl").open("ab") as file:
        file.write(b'{"more":\n')
    assert same(logs, state).table.notes == [f"3 files known from {state}, 1 read"]
    # In another way the same log is read again, and counts once.
    assert ran(logs, state, generic=True).table.notes == [f"0 files known from {state}, 4 read"]
    same(logs, state)


def test_requests_in_two_logs_count_once(tmp_path: Path) -> None:
    """Whether the logs come in one run or in two; they are read together. Where the former is gone, it is told."""
    folder, state = tmp_path / "logs", tmp_path / "state"
    folder.mkdir()
    for number, (first, last) in enumerate([(0, 300), (250, 500), (450, 700), (900, 1000)]):
        (folder / f"{number}.log").write_bytes(proxied(first, last))
    assert same(folder, state).told.counts.doubled == 100
    assert ran(folder, state).table.notes == [f"4 files known from {state}, 0 read"]
    (folder / "4.log").write_bytes(proxied(950, 1200))
    assert ran(folder, state).told.counts.doubled == 150
    # One of the logs of a source grows: all of them are read again.
    with (folder / "3.log").open("ab") as file:
        file.write(proxied(1000, 1100))
    assert same(folder, state).told.counts.doubled == 250
    (folder / "4.log").unlink()
    (folder / "5.log").write_bytes(proxied(1100, 1200))
    assert "count twice" in ran(folder, state).table.doubts[0]


def test_history_needs_no_logs(logs: Path, tmp_path: Path) -> None:
    """A table tells of logs that are gone, without lines, and is a baseline of its own."""
    state = tmp_path / "state"
    before = said(request(logs, state))
    shutil.rmtree(logs)
    alone = ReportRequest(
        LogFiles(()), Reading(), Params(), table=str(state), baseline=Window(START_US, START_US + 60_000_000)
    )
    after = said(alone)
    assert after["figures"] == before["figures"]
    assert [one["id"] for one in after["incidents"]] == [one["id"] for one in before["incidents"]]
    assert not any(one["lines"] for one in after["incidents"])
    assert any("No logs were given" in one for one in after["quality"]["caveats"])
    assert after["baseline"]
    with pytest.raises(BadInput, match="there is no table"):
        said(replace(alone, table=str(tmp_path / "none")))


def test_a_log_that_changes_takes_the_place_of_its_rows(logs: Path, tmp_path: Path) -> None:
    """Edited, cut or grown it counts once; early copies add nothing; a new log of the same name is another one."""
    state, log = tmp_path / "state", logs / "a-0.jsonl"
    content = log.read_bytes()
    same(logs, state)
    middle = content.index(b"\n", 20_000)
    log.write_bytes(content[:middle] + content[middle:].replace(b'"status":404', b'"status":503', 40))
    same(logs, state)
    log.write_bytes(content[: content.index(b"\n", 40_000) + 1])
    expected = same(logs, state).rows
    (tmp_path / "copy.jsonl").write_bytes(content[: content.index(b"\n", 30_000) + 1])
    assert ran([tmp_path / "copy.jsonl"], state).rows == expected
    log.rename(logs / "b.jsonl")
    log.write_bytes(own()[3].replace(b'"node":"', b'"node":"other-'))
    same(logs, state)


def test_lines_from_the_future_are_read_again(logs: Path, tmp_path: Path) -> None:
    """When their time has come they are like others."""
    state, middle = tmp_path / "state", json.loads(own()[2].split(b"\n")[0])["ts_us"]
    assert ran(logs, state, now_us=middle).told.counts.future
    assert same(logs, state).table.notes == [f"2 files known from {state}, 2 read"]


def test_what_is_damaged_is_made_again(few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and commits, cut, changed or gone: it is told, and read again; without the log it is told first."""
    monkeypatch.setattr("tricklecast.analytics.store.place.IN_USE_S", 0)
    state = tmp_path / "state"
    expected = ran(few, state).rows
    ways: list[Callable[[Path], object]] = [
        lambda path: path.write_bytes(path.read_bytes()[:-9]),
        lambda path: path.write_bytes((content := path.read_bytes())[:200] + bytes([content[200] ^ 1]) + content[201:]),
        Path.unlink,
    ]
    for way in ways:
        way(next(state.glob("rollup/*/*/*.parquet")))
        assert "are damaged, and left out" in ran([], state).table.doubts[0]
        run = ran(few, state)
        assert run.table.notes == [
            f"2 damaged sources in {state}: read again if its log is there",
            f"0 files known from {state}, 2 read",
        ]
        assert (run.rows, run.table.doubts) == (expected, [])
    for way in ways:
        way(next(state.glob("sources/*")))
        run = ran(few, state)
        assert run.table.notes[0] == f"0 files known from {state}, 2 read"
        assert (run.rows, run.table.doubts) == (expected, [])


def test_hours_are_kept_for_a_time(logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older ones go, and their logs are not read again; what was replaced goes, but not at once."""
    state, day = tmp_path / "state", 86_400_000_000
    later = [json.loads(line) for line in own()[3].splitlines()]
    (logs / "z.jsonl").write_text("".join(json.dumps(one | {"ts_us": one["ts_us"] + day}) + "\n" for one in later))
    kept = ran(logs, state, keep_us=20 * 3_600_000_000)
    assert "are not kept (--keep)" in kept.table.caveats[0]
    assert len(kept.told.names) == 1
    assert len(list(state.glob("rollup/*"))) == 1
    kept = ran(logs, state, keep_us=20 * 3_600_000_000)
    assert kept.table.notes == [f"5 files known from {state}, 0 read"]
    with (logs / "z.jsonl").open("ab") as file:
        file.write(b"torn")
    rows = set(state.glob("rollup/*/*/*"))
    ran(logs, state, keep_us=20 * 3_600_000_000)
    assert rows < set(state.glob("rollup/*/*/*"))
    monkeypatch.setattr("tricklecast.analytics.store.place.IN_USE_S", 0)
    ran(logs, state, keep_us=20 * 3_600_000_000)
    assert not rows & set(state.glob("rollup/*/*/*"))
    shutil.rmtree(logs)
    (tmp_path / "y.jsonl").write_text(json.dumps(later[0] | {"ts_us": later[0]["ts_us"] + 3 * day}) + "\n")
    ran([tmp_path / "y.jsonl"], state, keep_us=20 * 3_600_000_000)
    assert len(list(state.glob("sources/*"))) == 1


# --- whatever happens to the logs


def happen(dice: random.Random, folder: Path, number: int) -> None:
    """Something that happens to logs."""
    files = sorted(path for path in folder.iterdir() if path.suffix != ".gz")
    event = dice.choice(["add", "add", "add", "grow", "grow", "rename", "gzip", "overlap", "overlap", "strange"])
    if event == "add" or not files:
        (folder / f"{number}.jsonl").write_bytes(dice.choice([*own(), b""]))
    elif event == "overlap":
        first = dice.randrange(0, 400)
        (folder / f"{number}.log").write_bytes(proxied(first, first + dice.choice([50, 120])))
    elif event == "strange":
        (folder / f"{number}.log").write_bytes(b"words and\nmore words\n")
    else:
        file = dice.choice(files)
        if event == "grow":
            with file.open("ab") as stream:
                stream.write(dice.choice([b"torn", b"bad line\n", own()[0][: own()[0].index(b"\n", 5000) + 1]]))
        elif event == "rename":
            file.rename(folder / f"{file.name}.1")
        else:
            (folder / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
            file.unlink()


def histories(seed: int, folder: Path, steps: int) -> Iterator[None]:
    """Lets something happen, again and again."""
    dice = random.Random(seed)
    folder.mkdir()
    for _ in range(steps):
        for _event in range(3):
            happen(dice, folder, dice.randrange(10**6))
        try:
            find_logs([str(folder)])
        except AnalyticsError:
            continue
        yield


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(100, 120))])
def test_rows_are_the_same(seed: int, tmp_path: Path) -> None:
    """After any history of logs that come, grow, overlap, are renamed and compressed."""
    for _ in histories(seed, tmp_path / "logs", 8 if seed else 3):
        same(tmp_path / "logs", tmp_path / "state")


# --- whatever happens to the run


def killed(folder: Path, how: str) -> int:
    result = subprocess.run(
        [sys.executable, "-m", "tests.analytics.store.killed", str(folder), how], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    return int(result.stdout)


def test_a_run_that_is_killed_at_any_step(tmp_path: Path) -> None:
    """The next run is right, and finds nothing torn."""
    (tmp_path / "logs").mkdir()
    for number in range(3):
        (tmp_path / "logs" / f"{number}.jsonl").write_bytes(own()[number][: own()[number].index(b"\n", 1500) + 1])
    assert killed(tmp_path, "steps") > 5


@pytest.mark.long
def test_a_run_that_is_killed_at_random_moments(logs: Path) -> None:
    """The same for whole reports."""
    assert killed(logs.parent, "moments") > 50


@pytest.mark.parametrize("name", ["rollup", "sources"])
def test_a_table_that_cannot_be_written_to(few: Path, tmp_path: Path, name: str) -> None:
    """One line, with the reason; the next run, when it can, is right."""
    state = tmp_path / "state"
    state.mkdir()
    (state / name).write_bytes(b"")
    with pytest.raises(CannotWrite, match=rf"^cannot write to the table '{state}': [A-Z][a-z ]+$"):
        ran(few, state)
    (state / name).unlink()
    same(few, state)


def test_two_runs_at_the_same_time(few: Path, tmp_path: Path) -> None:
    """One waits until the other has added the logs; both are right, and each log is read once."""
    state, found = tmp_path / "state", list[Run]()
    runs = [Thread(target=lambda: found.append(ran(few, state))) for _ in range(2)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert found[0].rows == found[1].rows == same(few, state).rows
    notes = [f"{known} files known from {state}, {2 - known} read" for known in (0, 2)]
    assert sorted(run.table.notes[0] for run in found) == notes


# --- Spark


@pytest.mark.long  # test_both_engines_share_a_table writes with Spark, too
def test_spark_has_a_table_wherever_it_can_write(spark: SparkSession, logs: Path, tmp_path: Path) -> None:
    """Below a URL, of logs below another one: the report is the one of the embedded engine."""
    state = f"file://{tmp_path / 'state'}"
    (logs / "b.log").write_bytes(b"words\n")
    one = replace(request(logs, state, spark=SparkOptions("local[2]")), files=LogFiles((f"file://{logs}",)))
    first, again = make(one, silent), make(one, silent)
    assert again.notes == (f"4 files known from {state}, 1 read",)
    assert as_json(again.report) == as_json(first.report)
    report, here = plain(first), said(request(logs, None))
    assert report["figures"] == here["figures"]
    for theirs, ours in zip(report["incidents"], here["incidents"], strict=True):
        assert theirs | {"lines": ours["lines"]} == ours
        shown, expected = ([json.loads(line["text"])["ts_us"] for line in it["lines"]] for it in (theirs, ours))
        assert shown == expected
    shutil.rmtree(next((tmp_path / "state" / "rollup").glob("dt=*/*")))
    table = Table(Bucket(state, spark))
    assert len(table.rows(ALWAYS)[1]) < 4
    assert "are damaged, and left out" in table.doubts[0]


def test_both_engines_share_a_table(spark: SparkSession, logs: Path, tmp_path: Path) -> None:
    """Logs that one has added the other knows; logs that share requests are read together by both."""
    state = tmp_path / "state"
    (logs / "p.log").write_bytes(proxied(0, 300))

    def on_spark() -> Run:
        files, table = find_logs([str(logs)]), Table(Folder(str(state)))
        with closing(OnSpark(spark, files, Reading(), False, NOW_US)) as reader:
            table.add(files, Reading(), False, reader)
        rows, size, told = spark_rows(spark, table, ALWAYS, files)
        assert rows.count() == size
        return Run(table, told, [])

    assert same(logs, state).table.notes == [f"0 files known from {state}, 5 read"]
    (logs / "q.log").write_bytes(proxied(250, 500))
    (logs / "r.log").write_bytes(proxied(450, 600))
    run = on_spark()
    assert (run.table.notes, run.told.counts.doubled) == ([f"5 files known from {state}, 2 read"], 100)
    assert same(logs, state).table.notes == [f"7 files known from {state}, 0 read"]
    (logs / "s.log").write_bytes(proxied(550, 700))
    assert same(logs, state).told.counts.doubled == 150


# --- the command


def test_the_option(logs: Path, tmp_path: Path) -> None:
    """It says how much was known; standard input cannot be known again; a folder that cannot be made is an error."""

    def run(*arguments: object, stdin: bytes | None = None) -> Any:
        return CliRunner().invoke(cli, ["storms", *map(str, arguments)], input=stdin)

    place = tmp_path / "a" / "b"
    result = run(logs, "--table", place)
    assert result.exit_code == 1
    assert f"storms: 0 files known from {place}, 4 read" in result.stderr
    result = run("--table", place, "--baseline", "2025-10-09..2025-10-10", "--keep", "30d")
    assert result.exit_code == 1
    assert run("-", "--table", tmp_path, stdin=b"").exit_code == 2
    assert run(logs, "--keep", "3d").exit_code == 2
    assert run(logs, "--baseline", "2025-10-09..2025-10-10").exit_code == 2
    assert run("--table", place, "--baseline", "2025-10-10..2025-10-09").exit_code == 2
    assert run("--table", tmp_path / "none").exit_code == 3
    (tmp_path / "file").touch()
    result = run(logs, "--table", tmp_path / "file")
    assert result.exit_code == 2
    assert "cannot write" in result.stderr
    result = run(logs, "--engine", "embedded", "--table", "s3a://bucket/table")
    assert result.exit_code == 2
    assert "only Spark" in result.stderr
