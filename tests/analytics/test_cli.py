"""``tricklecast storms`` from its arguments to its exit code."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from tests.analytics.support.sample_report import empty_report, quiet_report, sample_episode, sample_report
from tests.analytics.support.scenarios import ended_then_not_found
from tests.analytics.support.writer import LogWriter, write_lines
from tricklecast.analytics.command import pipeline
from tricklecast.analytics.command.cli import storms
from tricklecast.analytics.episodes import Severity
from tricklecast.analytics.job import Counted
from tricklecast.analytics.report_old.figures import Quality
from tricklecast.analytics.report_old.model import Report

pytestmark = pytest.mark.usefixtures("spark")


def invoke(*arguments: object) -> Result:
    """Runs the command in this process, with the session that is already there."""
    app = typer.Typer()
    app.command()(storms)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def naive(tmp_path: Path) -> Path:
    """The log of a naive client around a channel's end, in a file with an odd name."""
    log = LogWriter("n1", random.Random(3))
    ended_then_not_found(log)
    return write_lines(tmp_path / "a:b [1].jsonl", log.lines())


def test_logs_are_read_and_the_report_on_them_is_shown(
    naive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read is said; a report on it that has storms is shown, is written, and is exit code 1."""
    read: list[int] = []

    def report_on(found: Counted, *_: object) -> Report:
        read.append(found.rollup.selectExpr("sum(n)").collect()[0][0])
        return sample_report()

    monkeypatch.setattr(pipeline, "report_on", report_on)
    result = invoke(naive, "--json", tmp_path / "report.json")
    assert result.exit_code == 1
    assert read == [251]
    assert "storms: reading 1 file" in result.stderr
    assert sample_report().episodes[0].id[:8] in result.stdout
    assert json.loads((tmp_path / "report.json").read_text())["n_episodes"] == sample_report().n_episodes
    assert not (tmp_path / "report.json.tmp").exists()


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> Callable[[Report], None]:
    """Lets the command report what a test says, whatever is in the logs."""
    return lambda report: monkeypatch.setattr(pipeline, "report_on_logs", lambda *_: report)


def test_json_on_stdout(naive: Path, reported: Callable[[Report], None]) -> None:
    """With --json - stdout is the document and nothing else."""
    reported(sample_report())
    result = invoke(naive, "--json", "-", "--fail-on", "never")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["n_episodes"] == sample_report().n_episodes


def test_no_storm(naive: Path, reported: Callable[[Report], None]) -> None:
    """Without a storm the exit code is 0."""
    reported(quiet_report())
    result = invoke(naive)
    assert result.exit_code == 0
    assert result.stdout.startswith("No retry storms.")


def test_no_lines(naive: Path, reported: Callable[[Report], None]) -> None:
    """A report on no lines is shown, and is no good news."""
    reported(empty_report())
    result = invoke(naive)
    assert result.exit_code == 3
    assert "the logs have no lines" in result.stderr


def test_fail_on(naive: Path, reported: Callable[[Report], None]) -> None:
    """A warning fails by default, and not with --fail-on critical."""
    reported(sample_report(episodes=(sample_episode(severity=Severity.WARN),), n_episodes=1))
    assert invoke(naive).exit_code == 1
    assert invoke(naive, "--fail-on", "critical").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([], 2),
        (["LOG", "--fail-on", "sometimes"], 2),
        (["LOG", "--json", "absent/report.json"], 2),
        (["LOG", "--json", "/"], 2),
        (["missing.jsonl"], 3),
    ],
)
def test_wrong_use(arguments: list[str], code: int, naive: Path, tmp_path: Path) -> None:
    """Wrong arguments are usage errors, missing logs bad input; neither shows a stack."""
    inside = ("missing.jsonl", "absent/report.json")
    names = {"LOG": str(naive)} | {name: f"{tmp_path}/{name}" for name in inside}
    result = invoke(*[names.get(argument, argument) for argument in arguments])
    assert result.exit_code == code
    assert "Traceback" not in result.stderr
    assert (code == 2) or result.stderr.splitlines()[-1].startswith("tricklecast: ")


def test_too_many_broken_lines(naive: Path, reported: Callable[[Report], None]) -> None:
    """Above one per cent of unparsable lines the report is shown, and not trusted; at one per cent it is."""
    reported(quiet_report(quality=Quality(lines=100, unparsable=1, events=0, dropped=0, anonymous=0)))
    assert invoke(naive).exit_code == 0
    reported(quiet_report(quality=Quality(lines=101, unparsable=2, events=0, dropped=0, anonymous=0)))
    result = invoke(naive)
    assert result.exit_code == 3
    assert "2 unparsable" in result.stdout
    assert "2 of 101 lines (2.0%)" in result.stderr


def test_verbose_shows_the_stack(tmp_path: Path) -> None:
    """With -v the whole error is shown, with the same exit code."""
    result = invoke(tmp_path / "missing.jsonl", "-v")
    assert result.exit_code == 3
    assert "Traceback" in result.stderr
