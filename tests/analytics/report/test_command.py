"""What the command says where the log is in doubt, and while it reads."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tricklecast.analytics.cli import storms

LINE = {"v": 1, "node": "n1", "kind": "exchange", "op": "read", "method": "GET", "path": "/a/1", "channel": "a"}


def log(folder: Path, good: int, bad: int) -> str:
    """A loop of so many requests, and lines that are no record."""
    lines = [
        json.dumps(LINE | {"ts_us": 1_760_000_000_000_000 + turn * 50_000, "status": 404, "client": "c"})
        for turn in range(good)
    ]
    (folder / "log.jsonl").write_text("\n".join([*lines, *["no record"] * bad, ""]))
    return str(folder / "log.jsonl")


@pytest.mark.parametrize(("bad", "expected"), [(0, 1), (2, 1), (3, 3)])
def test_more_than_one_unreadable_line_in_a_hundred(tmp_path: Path, bad: int, expected: int) -> None:
    """The report is written all the same, and says first, as stderr does, that it is not to be trusted."""
    app = typer.Typer()
    app.command()(storms.storms)
    result = CliRunner().invoke(app, [log(tmp_path, 200, bad)])
    assert result.exit_code == expected
    assert "INCIDENT 1" in result.stdout
    warning = "Do not trust this report: 3 of 203 lines (1.5 %) could not be read."
    assert (warning in result.stdout.partition("INCIDENT")[0]) == (expected == 3)
    assert (f"tricklecast: {warning}" in result.stderr) == (expected == 3)


def test_progress_has_amounts_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes read of all of them; on a pipe nothing."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with storms._stage("reading 1 file", 2_000_000) as advance:
        advance(1_000_000)
    assert "1.0/2.0 MB" in terminal.getvalue()
    monkeypatch.setattr(sys, "stderr", pipe := io.StringIO())
    with storms._stage("reading 1 file", 2_000_000) as advance:
        advance(1_000_000)
    assert pipe.getvalue() == ""
