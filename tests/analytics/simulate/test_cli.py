"""``tricklecast simulate`` from its arguments to its exit code."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from tests.support.waiting import WITHIN_S
from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.simulate.cli import simulate
from tricklecast.analytics.simulate.truth import Truth


def invoke(*arguments: object) -> Result:
    """Runs the command in this process."""
    app = typer.Typer()
    app.command()(simulate)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_writes_a_log(tmp_path: Path) -> None:
    """Logs and truth are in the folder, and a line says how much."""
    out = tmp_path / "logs"
    result = invoke(out, "--scenes", "grey", "--lines", 2000, "--duration", "30min", "--nodes", 3, "--seed", 5)
    assert result.exit_code == 0
    truth = Truth.read(out)
    assert (truth.seed, truth.kind) == (5, "grey")
    assert f"{truth.lines:,} lines, {len(truth.storms):,} storms" in result.stdout
    assert len(list(out.glob("access-edge-?.jsonl"))) == 3


def perfect(truth: Truth) -> dict[str, Any]:
    """A report of every storm as it was."""
    incidents = [
        {
            **{name: getattr(storm, name) for name in ("storm", "n", "clients", "channels", "trigger")},
            **{"since_us": storm.start_us, "until_us": storm.end_us, "nodes": [storm.node], "named": True},
            **{"instead": None, "ended_us": None},
        }
        for storm in truth.storms
    ]
    return {"incidents": incidents}


def test_judges_a_report(tmp_path: Path) -> None:
    """A perfect report is good enough; one without its last storms is not: exit code 1, and says what is missing."""
    out, report = tmp_path / "logs", tmp_path / "report.json"
    invoke(out, "--scenes", "grey", "--lines", 2000)
    document = perfect(Truth.read(out))
    report.write_text(json.dumps(document))
    result = invoke("--score", report, "--truth", out)
    assert result.exit_code == 0, result.output
    assert "good enough" in result.stdout
    (out / "report.json").write_text(json.dumps({"incidents": document["incidents"][:-5]}))
    result = invoke("--score", out / "report.json")
    assert result.exit_code == 1
    assert result.stdout.count("missed: ") == 5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give the folder for the logs"),
        (["x", "--truth", "y"], "--score"),
        (["x", "--lines", "5"], "100 to"),
        (["x", "--lines", "many"], "--lines"),
        (["x", "--lines", "500", "--clients", "5"], "--clients"),
        (["x", "--duration", "soon"], "--duration"),
        (["x", "--scenes", "pink"], "pink"),
    ],
)
def test_wrong_use(arguments: list[str], said: str) -> None:
    """Wrong arguments are usage errors that say what is wrong."""
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.output.replace("\u2502", " ").split())


@pytest.mark.parametrize("content", ["", "{}", '{"incidents":[{}]}', '{"incidents":3}'])
def test_no_report(content: str, tmp_path: Path) -> None:
    """What is no report is bad input: one line, no stack."""
    invoke(tmp_path / "logs", "--scenes", "grey", "--lines", 500)
    (tmp_path / "report.json").write_text(content)
    result = invoke("--score", tmp_path / "report.json", "--truth", tmp_path / "logs")
    assert isinstance(result.exception, BadInput)
    assert result.exception.exit_code == 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C and SIGTERM end it with the exit code of the signal, without a stack, and leave nothing behind."""
    command = f"{sys.executable} -m tricklecast simulate {tmp_path}/logs --scenes healthy --lines 50000000"
    with subprocess.Popen(command.split(), stderr=subprocess.PIPE) as process:
        try:
            # It has begun when there is something to be left behind.
            while not list(tmp_path.glob(".logs-*/made/access-*")) and process.poll() is None:
                threading.Event().wait(0.02)
            process.send_signal(number)
            _, told = process.communicate(timeout=WITHIN_S)
        finally:
            process.kill()
    assert (process.returncode, told) == (128 + number, b"")
    assert list(tmp_path.iterdir()) == []
