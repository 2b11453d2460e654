"""``tricklecast simulate`` from its arguments to its exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from tricklecast.analytics.simulate.cli import simulate
from tricklecast.analytics.simulate.truth import Truth


def invoke(*arguments: object) -> Result:
    """Runs the command in this process."""
    app = typer.Typer()
    app.command()(simulate)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_writes_a_log(tmp_path: Path) -> None:
    """Logs and truth are there, and a line says how much."""
    out = tmp_path / "logs"
    result = invoke("--out", out, "--set", "grey", "--lines", 2000, "--duration", "30min", "--nodes", 3, "--seed", 5)
    assert result.exit_code == 0
    truth = Truth.read(out)
    assert (truth.seed, truth.kind) == (5, "grey")
    assert f"{truth.lines:,} lines, {len(truth.storms):,} storms" in result.stdout
    assert len(list(out.glob("access-edge-?.jsonl"))) == 3


def report_of(truth: Truth) -> dict[str, object]:
    """A perfect report."""
    episodes = [
        storm.as_dict() | {"id": str(number), "n_clients": len(storm.clients), "n_channels": len(storm.channels)}
        for number, storm in enumerate(truth.storms)
    ]
    return {"episodes": episodes}


def test_judges_a_report(tmp_path: Path) -> None:
    """A perfect report is good enough; one without its last storms is not: exit code 1, and says what is missing."""
    out, report = tmp_path / "logs", tmp_path / "report.json"
    invoke("--out", out, "--set", "grey", "--lines", 2000)
    document = report_of(Truth.read(out))
    report.write_text(json.dumps(document))
    result = invoke("--score", report, "--truth", out)
    assert result.exit_code == 0, result.output
    assert "good enough" in result.stdout
    document["episodes"] = document["episodes"][:-5]  # type: ignore[index]
    (out / "report.json").write_text(json.dumps(document))
    result = invoke("--score", out / "report.json")
    assert result.exit_code == 1
    assert result.stdout.count("missed ") == 5


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--out", "x", "--lines", "5"],
        ["--out", "x", "--lines", "many"],
        ["--out", "x", "--duration", "soon"],
        ["--out", "x", "--rotate", "big"],
        ["--out", "x", "--set", "pink"],
        ["--out", "x", "--duplicates", "2"],
    ],
)
def test_wrong_use(arguments: list[str]) -> None:
    """Wrong arguments are usage errors."""
    assert invoke(*arguments).exit_code == 2


@pytest.mark.parametrize("content", ["", "{}", '{"episodes":[{}]}', '{"episodes":3}'])
def test_no_report(content: str, tmp_path: Path) -> None:
    """What is no report is bad input: one line, no stack."""
    from tricklecast.analytics.errors import BadInput

    invoke("--out", tmp_path / "logs", "--set", "grey", "--lines", 500)
    (tmp_path / "report.json").write_text(content)
    result = invoke("--score", tmp_path / "report.json", "--truth", tmp_path / "logs")
    assert isinstance(result.exception, BadInput)
    assert result.exception.exit_code == 3
