"""``storms check`` shows what is understood of a log, and how to go on where nothing is."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.analytics.lines.test_real_logs import CASES, WRAPPINGS
from tricklecast.app.cli import cli

ODD = ["2025-10-09T08:53:20Z 203.0.113.7 /a ok", '{"when": 1, "verb": "GET", "took": 5}']


@pytest.mark.parametrize("name", CASES)
def test_a_known_log(tmp_path: Path, name: str) -> None:
    """Format, wrapping and each field of a line, with the columns that it is from."""
    log = tmp_path / "a.log"
    log.write_text("".join(f"{WRAPPINGS['CRI'](line)}\n" for line in CASES[name][0]))
    result = CliRunner().invoke(cli, ["storms", "check", str(log)])
    assert (result.exit_code, " in cri\n" in result.stdout) == (0, True), result.output
    for told in ("status: 401", "path: /api/v1", f"ip: {CASES[name][3]}"):
        assert told in result.stdout


def test_a_line_that_cannot_be_read(tmp_path: Path) -> None:
    """The line's number, and the field."""
    log = tmp_path / "a.log"
    log.write_text("\n".join((*CASES["combined"][0] * 19, CASES["combined"][0][0].replace(" 401 ", " 4x1 "))) + "\n")
    result = CliRunner().invoke(cli, ["storms", "check", str(log)])
    assert result.exit_code == 3
    assert "line 20: status cannot be read" in result.stdout


@pytest.mark.parametrize("line", ODD)
def test_a_draft_of_a_map(tmp_path: Path, line: str) -> None:
    """Where the format is unknown, the columns are shown in the form of a map."""
    (tmp_path / "a.log").write_text(f"{line}\n")
    result = CliRunner().invoke(cli, ["storms", "check", str(tmp_path / "a.log")])
    assert result.exit_code == 3
    assert "[fields]" in result.stdout
    assert "layout = " in result.stdout
