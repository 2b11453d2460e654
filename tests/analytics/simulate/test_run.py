"""Simulated logs: complete, in order, repeatable, and what their truth says."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.analytics.simulate.conftest import Log, simulated
from tests.analytics.simulate.logs import all_lines, files_of, is_of, lines_of
from tricklecast.analytics.errors import CannotWrite
from tricklecast.analytics.simulate.formats import FormatName
from tricklecast.analytics.simulate.plan import sizes
from tricklecast.analytics.simulate.run import simulate_logs
from tricklecast.analytics.simulate.truth import FILE, Set, Truth
from tricklecast.trickle.records import SCHEMA

TYPES = {"int": int, "long": int, "string": str, "boolean": bool}


def digests(folder: Path) -> dict[str, str]:
    """What every file of a folder holds."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@pytest.mark.parametrize("which", ["standard", "grey"])
def test_truth_is_that_of_the_lines(which: str, request: pytest.FixtureRequest) -> None:
    """Counting a storm's kind of line, of its clients on its channels in its time, gives the number in the truth."""
    log: Log = request.getfixturevalue(which)
    by_channel: dict[str | None, list[int]] = {}
    for place, line in enumerate(log.lines):
        by_channel.setdefault(line.get("channel"), []).append(place)
    for storm in log.truth.storms:
        clients = set(storm.clients)
        mine = [
            line
            for channel in storm.channels
            for line in (log.lines[place] for place in by_channel[channel])
            if any(is_of(name, line) for name in (storm.storm or "", *storm.also))
            and storm.start_us <= line["ts_us"] <= storm.end_us
            and line["node"] == storm.node
            and (not clients or line["client"] in clients)
        ]
        # Healthy readers behind the same address ask once more at a channel's end: they share the client's key.
        others = 12 if "/nat#" in storm.name else 0
        assert storm.n <= len(mine) <= storm.n + others, storm.name
        assert min(line["ts_us"] for line in mine) == storm.start_us, storm.name
        assert max(line["ts_us"] for line in mine) == storm.end_us, storm.name


@pytest.mark.parametrize("which", ["standard", "grey"])
def test_storms_are_storms_by_definition(which: str, request: pytest.FixtureRequest) -> None:
    """Each single client's storm has 8 requests at 8 per second, or 30 at any pace; fleets have 5 clients or more."""
    log: Log = request.getfixturevalue(which)
    assert log.truth.storms
    for storm in log.truth.storms:
        if storm.storm in ("overload_amplification", "thundering_herd") or "rotating_keys" in storm.name:
            assert len(storm.clients) >= 5
            continue
        each = storm.n / max(1, len(storm.clients)) / len(storm.channels)
        seconds = max(1.0, (storm.end_us - storm.start_us) / 1e6)
        assert each >= 30 or (each >= 8 and each / seconds >= 8), storm.name


def test_near_misses_are_none(grey: Log) -> None:
    """No near miss of a single client reaches 8 quick requests or 30 slow ones."""
    misses = [trap for trap in grey.truth.traps if trap.name.startswith("near/") and trap.name.count("/") == 3]
    assert len(misses) > 20
    for trap in misses:
        inside = [
            line
            for line in grey.lines
            if line.get("client") in trap.clients
            and line.get("channel") in trap.channels
            and line["kind"] == "exchange"
        ]
        assert len(inside) < 30, trap.name
        assert trap.name.rpartition("/")[2].startswith("slow") or len(inside) < 8, trap.name


def test_lines_are_records(standard: Log, grey: Log) -> None:
    """Every field of every line is one of the schema, with its type."""
    types = {name: TYPES[kind] for name, kind in SCHEMA}
    for line in standard.lines + grey.lines:
        assert all(type(value) is types[name] for name, value in line.items()), line
        assert line["v"] == 1


def test_lines_are_written_when_requests_end(standard: Log) -> None:
    """The lines of a server are in the order of their ends, over all of its files, not of their arrivals."""
    arrivals_in_order = True
    for path in files_of(standard.folder):
        lines = lines_of(path)
        ends = [line["ts_us"] + line.get("dur_us", 0) for line in lines]
        assert ends == sorted(ends)
        arrivals_in_order &= [line["ts_us"] for line in lines] == sorted(line["ts_us"] for line in lines)
    assert not arrivals_in_order


def test_every_server_has_its_files(standard: Log) -> None:
    """Four servers, each with the file of the first hour, named with the time, and the present one."""
    names = [path.name for path in files_of(standard.folder)]
    assert {name for name in names if name.count("-") == 2} == {f"access-edge-{number}.jsonl" for number in range(1, 5)}
    rotated = [name for name in names if name.count("-") > 2]
    assert len(rotated) >= 4
    assert all(name.endswith("-0001.jsonl") and "-20251009T10" in name for name in rotated)


def test_about_as_many_lines_as_asked_for(standard: Log) -> None:
    """The truth counts the lines that are there; they are about as many as were asked for."""
    assert len(standard.lines) == standard.truth.lines
    assert 54_000 < standard.truth.lines < 66_000


def test_every_class_and_many_traps_are_there(standard: Log) -> None:
    """A small log has storms of every class, and look-alikes."""
    assert len({storm.storm for storm in standard.truth.storms}) == 14
    assert len(standard.truth.traps) > 10


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    """Twice the same, whatever the hashes of this process are; another seed gives something else."""
    for name, seed in (("a", 1), ("c", 2)):
        simulated(tmp_path / name, seed, Set.GREY, 3000)
    command = [sys.executable, "-m", "tricklecast", "simulate", str(tmp_path / "b")]
    subprocess.run(
        [*command, "--seed", "1", "--scenes", "grey", "--lines", "3000"],
        check=True,
        env=os.environ | {"PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo"},
        stdout=subprocess.DEVNULL,
    )
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    assert digests(tmp_path / "a").keys() == digests(tmp_path / "c").keys()
    assert digests(tmp_path / "a") != digests(tmp_path / "c")


def test_a_healthy_log_has_no_storms(tmp_path: Path) -> None:
    """Nothing is planted, and the lines are still about as many."""
    truth = simulated(tmp_path / "log", 1, Set.HEALTHY, 10_000)
    assert not truth.storms
    assert not truth.traps
    assert 8500 < truth.lines < 11_500


def test_small_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that has its size is renamed, and numbered."""
    monkeypatch.setattr("tricklecast.analytics.simulate.run.ROTATE_BYTES", 100_000)
    simulated(tmp_path / "log", 1, Set.HEALTHY, 5000)
    first = [path for path in files_of(tmp_path / "log") if "edge-1" in path.name]
    assert len(first) > 5
    assert all(path.stat().st_size < 300_000 for path in first)


@pytest.mark.parametrize("form", [form for form in FormatName if form is not FormatName.JSONL])
def test_forms_of_proxies(form: FormatName, tmp_path: Path) -> None:
    """A proxy's log has one line for each exchange and none for events."""
    truth = simulated(tmp_path / "ours", 1, Set.GREY, 2000)
    theirs = simulated(tmp_path / "theirs", 1, Set.GREY, 2000, form=form)
    events = sum(line["kind"] == "event" for line in all_lines(tmp_path / "ours"))
    assert theirs.lines == truth.lines - events
    assert all(storm.trigger is None for storm in theirs.storms)
    assert all(len(client) != 16 for storm in theirs.storms for client in storm.clients)
    written = sum(path.read_bytes().count(b"\n") for path in files_of(tmp_path / "theirs"))
    assert written == theirs.lines


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    """Only an earlier simulation is replaced, and only when told to; nothing is left behind."""
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("precious")
    for force in (False, True):
        with pytest.raises(CannotWrite):
            simulated(mine, 1, Set.HEALTHY, 200, force=force)
    assert (mine / "thesis.txt").read_text() == "precious"
    log = tmp_path / "log"
    simulated(log, 1, Set.HEALTHY, 200)
    with pytest.raises(CannotWrite):
        simulated(log, 2, Set.HEALTHY, 200)
    simulated(log, 2, Set.HEALTHY, 200, force=True)
    assert Truth.read(log).seed == 2
    assert {path.name for path in tmp_path.iterdir()} == {"mine", "log"}


@pytest.mark.parametrize("before", [False, True])
def test_an_interrupted_run_leaves_nothing(tmp_path: Path, before: bool) -> None:
    """Whoever stops it in the middle has neither half a log nor a temporary folder; an earlier log is still there."""

    def stop(doing: str, done: float) -> None:
        if done > 0.5:
            raise KeyboardInterrupt

    log = tmp_path / "log"
    if before:
        simulated(log, 1, Set.HEALTHY, 200)
    with pytest.raises(KeyboardInterrupt):
        simulate_logs(log, 2, Set.HEALTHY, sizes(lines=2000, kind=Set.HEALTHY), force=True, progress=stop)
    assert list(tmp_path.iterdir()) == ([log] if before else [])
    assert not before or Truth.read(log).seed == 1


def test_truth_is_read_as_it_was_written(grey: Log) -> None:
    """truth.json holds all that is known."""
    assert Truth.read(grey.folder) == grey.truth
    assert Truth.read(grey.folder / FILE) == grey.truth
