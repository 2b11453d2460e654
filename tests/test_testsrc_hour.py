"""The long run of the test source, in short: what it reports, and what it finds wrong."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from benchmarks.received import Received, receive
from benchmarks.testsrc_hour import Plan, Result, losses, main, report
from tests.support.fixtures import forks

__all__ = ["forks"]

PLAN = Plan(minutes=0.05, speed=4.0, size="160x90")
SECONDS = 12
GOOD = Received(
    packets={"video": 300, "audio": 563},
    pictures=300,
    keyframes=[(1000.0 * at, 5000 + 250 * at) for at in range(SECONDS)],
    producer=[(5000.0 + 250 * at, 12.0) for at in range(SECONDS)],
)
TOTALS = {"segments": 12, "bytes": 1 << 20, "gaps": 0, "missed": 0, "truncated": 0, "broken": 0, "retries": 0}


def result(**changes: object) -> Result:
    """A run in which all went well, but for some changes of what was received."""
    return Result(dataclasses.replace(GOOD, **changes), dict(TOTALS), ("published", 0))  # type: ignore[arg-type]


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the memory of other processes: Linux")
@pytest.mark.usefixtures("forks")
def test_a_short_run_loses_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Server, publisher and subscriber through the command line: every picture and every clock arrives."""
    assert main(["--minutes", "0.02", "--speed", "5", "--size", "160x90"]) == 0
    said = capsys.readouterr().out
    assert "6 segments, 0 gaps" in said
    assert "150 pictures, 0 jumps" in said


def test_a_good_run_has_nothing_wrong() -> None:
    """And its figures are told."""
    assert losses(PLAN, result()) == []
    assert "latency    median 12.0 ms, p99 12.0, max 12.0: last fifth" in list(report(PLAN, result()))


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"jumps": {"video": 2, "audio": 0}}, "2 jumps in the timestamps of video"),
        ({"corrupt": 1}, "1 corrupt packets"),
        ({"pictures": 299}, "299 pictures of 300"),
        ({"producer": GOOD.producer[1:]}, "12 keyframes, but 11 producer times"),
        ({"keyframes": [*GOOD.keyframes[:-1], (11_000.0, None)]}, "1 unreadable picture clocks"),
        ({"keyframes": [*GOOD.keyframes[:-1], (11_300.0, 7750)]}, "picture clock - timestamps: 75 ms apart"),
        ({"producer": [*GOOD.producer[:-1], (7800.0, 12.0)]}, "producer time - picture clock: 50 ms apart"),
    ],
)
def test_what_was_lost_is_named(changes: dict[str, object], wrong: str) -> None:
    """One line for each thing that is wrong with what was received."""
    assert losses(PLAN, result(**changes)) == [wrong]


def test_what_the_processes_say_is_judged() -> None:
    """Gaps of the subscriber, the publisher's exit code, and memory that grows once it should not."""
    bad = result()
    bad.totals |= {"gaps": 1, "missed": 3}
    bad.publisher = ("lost", 1)
    bad.memory = {"server": [float(at) for at in range(100)], "publisher": [50.0] * 100}
    assert losses(PLAN, bad) == [
        "1 x gaps in the channel",
        "3 x missed in the channel",
        "the publisher ended with exit code 1",
        "the server grew by 24.0 MiB",
    ]


def test_nothing_received_is_nothing(tmp_path: Path) -> None:
    """A channel that was never there: the publisher's exit code says why."""
    with (tmp_path / "empty").open("w+b") as pipe:
        assert receive(pipe) == Received()
    nothing = Result(Received(), dict(TOTALS), ("no such size", 2))
    assert losses(PLAN, nothing) == ["the publisher ended with exit code 2", "0 pictures of 300"]
    assert list(report(PLAN, nothing))[-1] == "publisher  no such size"
