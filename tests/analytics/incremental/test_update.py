"""Incremental runs: any split of the logs over files and runs gives the roll-up of one run over all of them."""

from __future__ import annotations

import gzip
import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.analytics.support.scenarios import write_all
from tricklecast.analytics.duplicates import once
from tricklecast.analytics.durations import HOUR_US
from tricklecast.analytics.errors import BadInput, Busy
from tricklecast.analytics.incremental import update as module
from tricklecast.analytics.incremental.folder import HOURS, LOCK
from tricklecast.analytics.incremental.manifest import NAME, Manifest
from tricklecast.analytics.incremental.merge import MEASURES
from tricklecast.analytics.incremental.store import SOURCE, with_source
from tricklecast.analytics.incremental.update import Kept, kept_of, opened, update
from tricklecast.analytics.inputs import ALWAYS, LogFiles, Window, find_logs
from tricklecast.analytics.normalise import normalise
from tricklecast.analytics.rollup import KEY, roll_up
from tricklecast.analytics.sources import read_logs
from tricklecast.analytics.spark import interpreted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

READING: dict[str, str | None] = {"format": "auto", "client key": None, "path prefix": None}

LINES = write_all(seed=11)[0][::8]


class Runs:
    """Runs over one folder of logs and one state."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.logs = folder / "logs"
        self.state = folder / "state"
        self.logs.mkdir()

    def write(self, name: str, lines: list[str]) -> Path:
        """Writes a log; compressed if its name says so."""
        data = "".join(line + "\n" for line in lines).encode()
        path = self.logs / name
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    def run(self, keep_us: int | None = None, window: Window = ALWAYS) -> list[Any]:
        """One incremental run over all logs; the rows of its roll-up."""
        return self.kept(keep_us, window)[1]

    def kept(self, keep_us: int | None = None, window: Window = ALWAYS) -> tuple[Kept, list[Any]]:
        """The same, and what the state says about it."""
        files = find_logs([str(self.logs)]) if any(self.logs.iterdir()) else LogFiles((), 0, ())
        # Compiling each of these many small plans would take most of the time.
        with opened(str(self.state), files, READING) as state, interpreted(self.spark):
            manifest = update(self.spark, state, self.roll_up, keep_us)
            kept = kept_of(self.spark, state, manifest, window)
            return kept, rows(kept.rollup)

    def roll_up(self, files: LogFiles, each_once: bool = False) -> DataFrame:
        """As the command does."""
        lines = normalise(with_source(read_logs(self.spark, files)), keep=[SOURCE])
        return roll_up(once(lines, SOURCE) if each_once else lines, also=[SOURCE])

    def whole(self, lines: list[str]) -> list[Any]:
        """The roll-up of one run over all lines."""
        path = self.logs.parent / "whole.jsonl"
        path.write_text("".join(line + "\n" for line in lines))
        with interpreted(self.spark):
            return rows(roll_up(normalise(read_logs(self.spark, find_logs([str(path)])))))


def rows(rollup: DataFrame) -> list[Any]:
    """The rows in an order that does not depend on how they came about."""
    columns = [*KEY, *MEASURES]
    assert sorted(rollup.columns) == sorted(columns)
    return sorted((tuple(row) for row in rollup.select(*columns).collect()), key=repr)


@pytest.fixture
def runs(spark: SparkSession, tmp_path: Path) -> Runs:
    """A folder for logs, and a state beside it."""
    return Runs(spark, tmp_path)


def test_late_files_are_folded_in_and_running_twice_changes_nothing(runs: Runs) -> None:
    """Lines in any order over any files and runs: the roll-up of all; a second run writes nothing."""
    lines = list(LINES)
    expected = runs.whole(lines)
    random.Random(5).shuffle(lines)
    third = len(lines) // 3
    runs.write("b.jsonl", lines[:third])
    runs.run()
    runs.write("a.jsonl.gz", lines[third : 2 * third])
    runs.write("c d:e.jsonl", lines[2 * third :])
    assert runs.run() == expected
    before = content(runs.state)
    assert runs.run() == expected
    assert content(runs.state) == before


def test_an_interrupted_run_changes_nothing_or_everything(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed before the manifest is switched or after it, the next run finds a state that it can use, and tidies up."""
    runs.write("a.jsonl", LINES[:200])
    for where, calls in (("save", 1), ("clean", 2)):  # the first clean is at a run's beginning
        with monkeypatch.context() as patched:
            patched.setattr(module, where, interrupt(getattr(module, where), calls))
            with pytest.raises(KeyboardInterrupt):
                runs.run()
        runs.write("b.jsonl", LINES[200:400])
    assert runs.run() == runs.whole(LINES[:400])
    manifest = json.loads((runs.state / NAME).read_text())
    named = {part["name"] for parts in manifest["hours"].values() for part in parts}
    assert {path.name for path in (runs.state / HOURS).iterdir()} == named
    assert not (runs.state / "work").exists()


def interrupt(function: Callable[..., Any], nth: int) -> Callable[..., Any]:
    """The same function, killed when it is called for the n-th time."""
    calls: list[object] = []

    def killed(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == nth:
            raise KeyboardInterrupt
        return function(*arguments)

    return killed


@pytest.mark.long
def test_lines_of_several_logs_count_once(runs: Runs) -> None:
    """Wherever a line is, and whichever run it came with; as long as one of the logs has it, and said how often."""
    lines = [line for line in LINES if '"kind":"event"' not in line]  # events are not told apart
    whole = runs.whole(lines)
    third = len(lines) // 3
    runs.write("a.jsonl", [*lines[:third], *lines[10:20]])
    assert runs.kept()[0].duplicates == 10
    runs.write("b.jsonl", lines[third // 2 :])
    kept, found = runs.kept()
    assert found == whole
    assert kept.duplicates == 10 + third - third // 2
    # Written again, with other lines after the first: what it had in common with the other log must not go with it.
    runs.write("b.jsonl", [lines[third // 2], *lines[-10:]])
    runs.write("c.jsonl.gz", lines[third:-10])
    kept, found = runs.kept()
    assert found == whole
    assert (kept.duplicates, kept.unsure) == (11, ())


@pytest.mark.long
def test_copies_of_logs_that_are_gone(runs: Runs, state: Path) -> None:
    """They cannot be compared line by line any more: the state says of which logs lines may count twice."""
    shutil.copytree(state, runs.state)
    copy = runs.write("b.jsonl", ["{}", *LINES])
    kept, _ = runs.kept()
    assert kept.unsure == (str(copy),)


def test_one_run_at_a_time(tmp_path: Path) -> None:
    """A second run is refused while the first has the folder, and says whose it is; then it is let in."""
    nothing, folder = LogFiles((), 0, ()), str(tmp_path / "state")
    with opened(folder, nothing, READING):
        second = opened(folder, nothing, READING)
        with pytest.raises(Busy, match=r"being used by another run \(process \d+\)"):
            second.__enter__()
    with opened(folder, nothing, READING):
        pass


def test_what_is_too_old_is_forgotten_and_stays_so(runs: Runs) -> None:
    """--keep counts from the newest line; unparsable lines go with their log; a known old log is not read again."""
    old = [line.replace('"ts_us":17', '"ts_us":16') for line in LINES[:50]]
    runs.write("old.jsonl", [*old, "{"])
    runs.write("new.jsonl", LINES[50:100])
    kept = runs.run(keep_us=24 * HOUR_US)
    assert kept == runs.whole(LINES[50:100])
    before = content(runs.state)
    assert runs.run() == kept
    assert content(runs.state) == before
    (runs.logs / "old.jsonl").unlink()
    runs.run()
    assert [log["name"] for log in json.loads((runs.state / NAME).read_text())["logs"].values()] == [
        str(runs.logs / "new.jsonl")
    ]


def test_a_span_is_cut_at_whole_minutes(runs: Runs, state: Path) -> None:
    """Buckets cannot be cut: the span grows to the next minute on both sides."""
    shutil.copytree(state, runs.state)
    everything = runs.run()
    bucket = KEY.index("bucket_us")
    times = sorted({row[bucket] for row in everything})
    since, until = times[len(times) // 4] + 1, times[len(times) // 2] + 1
    low, high = since - since % 60_000_000, until + -until % 60_000_000
    wanted = [row for row in everything if low <= row[bucket] < high]
    assert runs.run(window=Window(since, until)) == wanted
    assert 0 < len(wanted) < len(everything)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "holiday.jpg").touch(), "no state of storms: it has 'holiday.jpg'"),
        (lambda folder: (folder / NAME).write_text("{"), "is damaged"),
        (lambda folder: (folder / NAME).write_text("[]"), "is damaged"),
        (lambda folder: next((folder / HOURS).iterdir()).unlink(), "is damaged"),
        (lambda folder: next((folder / HOURS).iterdir()).write_bytes(b""), "is damaged"),
        (lambda folder: edit(folder, version=99), "another version"),
        (lambda folder: edit(folder, rollup="other"), "another version"),
        (lambda folder: edit(folder, reading=READING | {"format": "nginx"}), "read with format nginx, not auto"),
    ],
)
def test_a_state_that_cannot_be_used(
    change: Callable[[Path], object], message: str, state: Path, tmp_path: Path
) -> None:
    """It is refused in one line that says why, before Spark starts, and left as it is."""
    folder = shutil.copytree(state, tmp_path / "state")
    change(folder)
    before = content(folder)
    with pytest.raises(BadInput, match=message), opened(str(folder), LogFiles((), 0, ()), READING):
        pass
    assert content(folder) == before


@pytest.fixture(scope="module")
def state(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good state, to be copied and spoilt; its log is gone."""
    runs = Runs(spark, tmp_path_factory.mktemp("good"))
    log = runs.write("a.jsonl", LINES)
    runs.run()
    log.unlink()
    return runs.state


def content(folder: Path) -> dict[str, bytes]:
    """A folder, byte by byte."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != LOCK}


def edit(folder: Path, **changes: object) -> None:
    """Changes the manifest by hand."""
    document = json.loads((folder / NAME).read_text())
    (folder / NAME).write_text(json.dumps(document | changes))


def test_a_log_that_is_rotated_away_meanwhile(runs: Runs) -> None:
    """What was read may be another log: nothing is taken in."""
    path = runs.write("a.jsonl", LINES[:10])
    with opened(str(runs.state), find_logs([str(runs.logs)]), READING) as state:

        def rotate(files: LogFiles, _: bool) -> DataFrame:
            path.rename(runs.logs / "a-1.jsonl")
            runs.write("a.jsonl", LINES[10:20])
            return runs.roll_up(files)

        with pytest.raises(BadInput, match="was replaced while it was being read"):
            update(runs.spark, state, rotate, None)
    assert not (runs.state / NAME).exists()


def test_remote_logs_are_refused(runs: Runs) -> None:
    """They have no checksum without being read."""
    files = LogFiles(("s3a://bucket/log",), 0, ())
    with pytest.raises(BadInput, match="files of this machine"), opened(str(runs.state), files, READING):
        pass


def test_a_state_without_anything(runs: Runs) -> None:
    """No logs and no hours are an empty roll-up."""
    assert runs.run() == []
    assert replace(Manifest(READING)).parts() == set()
