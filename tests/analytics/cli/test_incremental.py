"""``--incremental``: the report is the one without it, whatever happened to the files and to what is kept."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from tests.analytics.cli.killed import silent
from tests.analytics.lines.traffic import START_US, as_line
from tests.analytics.support.scenarios import write_all
from tricklecast.analytics.cli.pipeline import Asked, Spark, make
from tricklecast.analytics.errors import AnalyticsError
from tricklecast.analytics.lines import Reading, Window, find_logs
from tricklecast.analytics.report.json import as_json
from tricklecast.analytics.rules.params import Params
from tricklecast.analytics.store import parts
from tricklecast.app.cli import cli

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SLICES = 4


def own() -> list[bytes]:
    """Slices of a log of our own, with storms that go on from one to the next, and lines that cannot be read."""
    rows = sorted(write_all(5)[0][::12], key=lambda line: json.loads(line)["ts_us"])
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


OWN = own()


def asked(folder: Path | list[Path], state: Path | str | None, reading: Reading | None = None, **more: Any) -> Asked:
    how = reading or Reading()
    names = [str(folder)] if not isinstance(folder, list) else list(map(str, folder))
    state = None if state is None else str(state)
    return Asked(find_logs(names, how.window), how, Params(), incremental=state, **more)


def said(one: Asked) -> str:
    """The report, or why there is none."""
    try:
        return as_json(make(one, silent).report)
    except AnalyticsError as error:
        return repr(error)


def same(one: Asked) -> None:
    """Holds a run to one without what is kept."""
    assert said(one) == said(replace(one, incremental=None))


def notes(one: Asked) -> tuple[str, ...]:
    return make(one, silent).notes


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    for number, content in enumerate(OWN):
        (folder / f"a-{number}.jsonl").write_bytes(content)
    return folder


def test_what_is_known_is_not_read_again(logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither after a rotation; a file that has grown or was compressed is read, and only that."""
    state = tmp_path / "state"
    assert notes(asked(logs, state)) == (f"0 files known from {state}, 4 read",)
    assert notes(asked(logs, state)) == (f"4 files known from {state}, 0 read",)
    same(asked(logs, state))
    (logs / "a-1.jsonl").rename(logs / "a-1.jsonl.1")
    assert notes(asked(logs, state)) == (f"4 files known from {state}, 0 read",)
    with (logs / "a-0.jsonl").open("ab") as file:
        file.write(b'{"more":\n')
    (logs / "a-2.jsonl.gz").write_bytes(gzip.compress((logs / "a-2.jsonl").read_bytes()))
    (logs / "a-2.jsonl").unlink()
    assert notes(asked(logs, state)) == (f"2 files known from {state}, 2 read",)
    same(asked(logs, state))


def test_lines_of_incidents_are_kept(logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second run shows them and opens no log for them."""
    state = tmp_path / "state"
    expected = said(asked(logs, state))
    assert '"no": ' in expected
    monkeypatch.setattr("tricklecast.analytics.lines.embedded.read_lines", None)
    assert said(asked(logs, state)) == expected


def test_requests_in_two_files_count_once(tmp_path: Path) -> None:
    """Files that share the id of a request are one part, and are known as such; others are not read with them."""
    folder, state = tmp_path / "logs", tmp_path / "state"
    folder.mkdir()
    for number, (first, last) in enumerate([(0, 300), (250, 500), (450, 700), (900, 1000)]):
        (folder / f"{number}.log").write_bytes(proxied(first, last))
    same(asked(folder, state))
    assert json.loads(said(asked(folder, state)))["quality"]["duplicates"] == 100
    assert notes(asked(folder, state)) == (f"4 files known from {state}, 0 read",)
    (folder / "9.log").write_bytes(proxied(990, 1100))
    assert notes(asked(folder, state)) == (f"3 files known from {state}, 2 read",)
    same(asked(folder, state))


def test_a_window_reads_only_the_files_that_it_cuts(logs: Path, tmp_path: Path) -> None:
    """Those outside of it are not looked at, those inside of it are taken as they are kept."""
    state = tmp_path / "state"
    same(asked(logs, state))
    starts = [json.loads(content.split(b"\n")[0])["ts_us"] for content in OWN]
    cut = Reading(window=Window(starts[1] + 1, None))
    assert notes(asked(logs, state, cut)) == (f"3 files known from {state}, 1 read",)
    same(asked(logs, state, cut))
    same(asked(logs, state, Reading(window=Window(starts[1], starts[2]))))
    same(asked(logs, state, Reading(window=Window(1, 2))))


@pytest.mark.long
def test_lines_from_the_future_are_read_again(logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When their time has come they are like others."""
    state = tmp_path / "state"
    middle = json.loads(OWN[2].split(b"\n")[0])["ts_us"]
    monkeypatch.setattr("tricklecast.analytics.cli.pipeline._now_us", lambda: middle)
    same(asked(logs, state))
    monkeypatch.undo()
    assert notes(asked(logs, state)) == (f"2 files known from {state}, 2 read",)
    same(asked(logs, state))


@pytest.mark.long
def test_other_options_have_other_parts(logs: Path, tmp_path: Path) -> None:
    """What is kept for one way of reading serves no other; thresholds make no difference."""
    state = tmp_path / "state"
    same(asked(logs, state))
    same(asked(logs, state, generic=True))
    assert notes(asked(logs, state, Reading(client_key="ip"))) == (f"0 files known from {state}, 4 read",)
    one = replace(asked(logs, state), params=Params(fast_hits=500))
    assert notes(one) == (f"4 files known from {state}, 0 read",)
    same(one)


def test_a_damaged_part_is_made_again(logs: Path, tmp_path: Path) -> None:
    """It is told once, and the report is right, however the part was damaged."""
    state = tmp_path / "state"
    make(asked(logs, state), silent)
    cut, changed, gone, facts = sorted(folder for folder in state.iterdir() if folder.is_dir())
    (cut / "rollup.parquet").write_bytes((cut / "rollup.parquet").read_bytes()[:-9])
    (gone / "rollup.parquet").unlink()
    for file in (changed / "rollup.parquet", facts / "facts"):
        content = file.read_bytes()
        file.write_bytes(content[:200] + bytes([content[200] ^ 1]) + content[201:])
    assert notes(asked(logs, state)) == (
        f"0 files known from {state}, 4 read",
        f"4 damaged parts in {state}: made again",
    )
    same(asked(logs, state))
    assert notes(asked(logs, state)) == (f"4 files known from {state}, 0 read",)


def test_what_nobody_uses_is_removed(logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After 30 days, or earlier where there is too much; never what others have in the folder."""
    state = tmp_path / "state"
    make(asked(logs, state), silent)
    ours = set(state.iterdir())
    (state / "notes.txt").touch()
    (state / f".new-{'0' * 32}").mkdir()
    old = time.time() - parts.UNUSED_S - 1
    for path in state.iterdir():
        os.utime(path, (old, old))
    make(asked([logs / "a-3.jsonl"], state), silent)
    left = set(state.iterdir())
    assert len([path for path in left & ours if path.is_dir()]) == 1
    assert state / "notes.txt" in left
    assert not [path for path in left if path.name.startswith(".new")]
    lately = time.time() - parts.IN_USE_S - 1
    for path in left:
        os.utime(path, (lately, lately))
    monkeypatch.setattr(parts, "MAX_BYTES", 0)
    parts.LocalParts(str(state)).clean()
    assert [path.name for path in state.iterdir()] == ["notes.txt"]


# --- whatever happens to the files

EVENTS = ("add", "grow", "rename", "gzip", "remove", "edit", "overlap", "strange")


def happen(dice: random.Random, folder: Path, number: int) -> None:
    """Something that happens to logs."""
    files = sorted(path for path in folder.iterdir() if path.suffix != ".gz")
    event = dice.choice(
        ["add", "add", "add", "grow", "rename", "gzip", "remove", "edit", "overlap", "overlap", "strange"]
    )
    if event == "add" or not files:
        (folder / f"{number}.jsonl").write_bytes(dice.choice([*OWN, b""]))
    elif event == "overlap":
        first = dice.randrange(0, 400, 50)
        (folder / f"{number}.log").write_bytes(proxied(first, first + dice.choice([50, 120])))
    elif event == "strange":
        (folder / f"{number}.log").write_bytes(b"words and\nmore words\n")
    else:
        file = dice.choice(files)
        if event == "grow":
            with file.open("ab") as stream:
                stream.write(dice.choice([b"torn", b"bad line\n", OWN[0][: OWN[0].index(b"\n", 5000) + 1]]))
        elif event == "rename":
            file.rename(folder / f"{number}.log.1")
        elif event == "gzip":
            (folder / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
            file.unlink()
        elif event == "edit":
            file.write_bytes(file.read_bytes().replace(b'"status":404', b'"status":503', 40))
        else:
            file.unlink()


def histories(seed: int, folder: Path, steps: int) -> Iterator[Callable[[Path | str | None], Asked]]:
    """What is asked after each of some events."""
    dice = random.Random(seed)
    folder.mkdir()
    for _ in range(steps):
        for _event in range(3):
            happen(dice, folder, dice.randrange(10**6))
        files = sorted(folder.iterdir())
        dice.shuffle(files)
        given: Any = folder if dice.random() < 0.7 else files
        borders = sorted(dice.choice([None, START_US + dice.randrange(-60, 1800) * 1_000_000]) or 0 for _ in range(2))
        window = Window(borders[0] or None, borders[1] or None)
        if dice.random() < 0.4:
            window = Window()
        reading = Reading(window=window)
        try:
            find_logs([str(folder)] if given is folder else list(map(str, files)), window)
        except AnalyticsError:
            continue
        yield lambda state, given=given, reading=reading: asked(given, state, reading)  # type: ignore[misc]


def test_the_report_is_the_same(tmp_path: Path) -> None:
    """After any history of files that come, grow, overlap, are renamed, edited, compressed and removed."""
    for ask in histories(0, tmp_path / "logs", 2):
        same(ask(tmp_path / "state"))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 140))
def test_the_report_is_the_same_at_length(seed: int, tmp_path: Path) -> None:
    """The same for more histories."""
    for ask in histories(seed, tmp_path / "logs", 12):
        same(ask(tmp_path / "state"))


# --- whatever happens to the run


def killed(folder: Path, how: str) -> int:
    result = subprocess.run(
        [sys.executable, "-m", "tests.analytics.cli.killed", str(folder), how], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    return int(result.stdout)


@pytest.mark.long
def test_a_run_that_is_killed_at_any_step(tmp_path: Path) -> None:
    """The next run finds no part of which a piece is missing, and is right."""
    (tmp_path / "logs").mkdir()
    for number in range(2):
        (tmp_path / "logs" / f"{number}.jsonl").write_bytes(OWN[number][:3000])
    assert killed(tmp_path, "steps") > 10


@pytest.mark.long
def test_a_run_that_is_killed_at_random_moments(logs: Path) -> None:
    """The same for whole reports."""
    assert killed(logs.parent, "moments") > 50


@pytest.mark.long
def test_two_runs_at_the_same_time(logs: Path, tmp_path: Path) -> None:
    """Each may add what the other adds; both are right."""
    state = tmp_path / "state"
    expected = said(asked(logs, None))
    found: list[str] = []
    runs = [Thread(target=lambda: found.append(said(asked(logs, state)))) for _ in range(2)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert found == [expected] * 2
    same(asked(logs, state))


# --- Spark


def on_spark(one: Asked) -> Asked:
    return replace(one, spark=Spark("local[2]"))


def test_spark_keeps_parts_wherever_it_can_write(spark: SparkSession, logs: Path, tmp_path: Path) -> None:
    """Below a URL, of logs below another one: the report is the one without them."""
    state = f"file://{tmp_path / 'state'}"
    (logs / "a-3.jsonl").unlink()
    (logs / "b.log").write_bytes(b"words\n")
    one = on_spark(replace(asked(logs, state), files=find_logs([f"file://{logs}"])))
    first, again = make(one, silent), make(one, silent)
    assert again.notes == (f"3 files known from {state}, 1 read",)
    assert as_json(again.report) == as_json(first.report)
    report, here = json.loads(as_json(first.report)), json.loads(said(asked(logs, None)))
    assert report["figures"] == here["figures"]
    for theirs, ours in zip(report["incidents"], here["incidents"], strict=True):
        assert theirs | {"lines": ours["lines"]} == ours
        shown, expected = ([json.loads(line["text"])["ts_us"] for line in it["lines"]] for it in (theirs, ours))
        assert shown == expected


@pytest.mark.long
def test_spark_makes_again_what_is_not_whole(spark: SparkSession, logs: Path, tmp_path: Path) -> None:
    """A part that lost its roll-up is told; one without facts is of a run that was killed."""
    state = tmp_path / "state"
    one = on_spark(asked([logs / "a-0.jsonl", logs / "a-1.jsonl"], state))
    expected = said(one)
    first, second = state.glob("*-*")
    shutil.rmtree(first / "rollup")
    shutil.rmtree(second / "facts")
    made = make(one, silent)
    assert made.notes == (f"0 files known from {state}, 2 read", f"1 damaged part in {state}: made again")
    assert as_json(made.report) == expected
    assert notes(one) == (f"2 files known from {state}, 0 read",)


@pytest.mark.long
def test_spark_reads_overlapping_files_together(spark: SparkSession, tmp_path: Path) -> None:
    """All those with ids, as it does without parts."""
    folder, state = tmp_path / "logs", tmp_path / "state"
    folder.mkdir()
    (folder / "0.log").write_bytes(proxied(0, 300))
    (folder / "1.log").write_bytes(proxied(250, 500))
    (folder / "2.jsonl").write_bytes(OWN[0])
    one = on_spark(asked(folder, state))
    expected = said(replace(one, incremental=None))
    assert json.loads(expected)["quality"]["duplicates"] == 50
    assert said(one) == expected
    assert notes(one) == (f"3 files known from {state}, 0 read",)


# --- the command


def test_the_option(logs: Path, tmp_path: Path) -> None:
    """It says how much was known; standard input cannot be known again; a folder that cannot be made is an error."""

    def run(*arguments: object, stdin: bytes | None = None) -> Any:
        return CliRunner().invoke(cli, ["storms", *map(str, arguments)], input=stdin)

    result = run(logs, "--incremental", tmp_path / "a" / "b")
    assert result.exit_code == 1
    assert f"storms: 0 files known from {tmp_path / 'a' / 'b'}, 4 read" in result.stderr
    assert run("-", "--incremental", tmp_path, stdin=b"").exit_code == 2
    (tmp_path / "file").touch()
    result = run(logs, "--incremental", tmp_path / "file")
    assert result.exit_code == 2
    assert "cannot write" in result.stderr
    result = run(logs, "--engine", "embedded", "--incremental", "s3a://bucket/state")
    assert result.exit_code == 2
    assert "only Spark" in result.stderr
