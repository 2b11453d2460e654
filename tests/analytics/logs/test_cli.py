"""``tricklecast logs``, as it is typed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

from typer.testing import CliRunner

from tests.analytics.sources.lines import OWN, as_line
from tests.analytics.support.writer import write_lines
from tests.support.forked import forked
from tests.support.waiting import eventually
from tricklecast.app.cli import cli

LINES = [as_line(OWN | {"channel": f"film-{number}", "status": 404 if number % 2 else 200}) for number in range(20)]


def shown(*arguments: str, code: int = 0) -> list[str]:
    """What a command prints."""
    result = CliRunner().invoke(cli, ["logs", *arguments])
    assert result.exit_code == code, result.output
    return result.stdout.splitlines()


def test_tail(tmp_path: Path) -> None:
    """The last ten lines, or as many as asked for, of those that are wanted; raw on request."""
    path = str(write_lines(tmp_path / "a.jsonl", LINES))
    assert [line.split("film-")[1].split()[0] for line in shown("tail", path)] == [str(n) for n in range(10, 20)]
    assert len(shown("tail", "-n", "3", path)) == 3
    failures = shown("tail", "--failures", "-n", "2", path)
    assert [line.split()[2] for line in failures] == ["404", "404"]
    (raw,) = shown("tail", "--raw", "--channel", "film-7", path)
    assert json.loads(raw)["channel"] == "film-7"


def test_tail_of_what_is_not_there(tmp_path: Path) -> None:
    """A file that cannot be read is one line, and exit code 3."""
    for name in (tmp_path / "missing.jsonl", tmp_path):
        result = subprocess.run(forked("logs", "tail", name), capture_output=True, text=True)
        assert result.returncode == 3
        assert result.stderr.startswith("tricklecast: cannot read")
        assert result.stderr.count("\n") == 1


def test_tail_follows_until_it_is_interrupted(tmp_path: Path) -> None:
    """New lines are shown as they come; Ctrl-C ends it without a word."""
    path = write_lines(tmp_path / "a.jsonl", LINES[:1])
    output = tmp_path / "output"
    with output.open("wb") as stdout:
        tail = subprocess.Popen(forked("logs", "tail", "-f", path), stdout=stdout, stderr=subprocess.PIPE)
    try:
        eventually(lambda: "film-0" in output.read_text())
        with path.open("ab") as file:
            file.write(LINES[1] + b"\n")
        eventually(lambda: "film-1" in output.read_text())
        tail.send_signal(signal.SIGINT)
        _, said = tail.communicate(timeout=120)
    finally:
        tail.kill()
    assert (tail.returncode, said) == (130, b"")


def test_schema() -> None:
    """Each form is printed; examples are lines of the log."""
    assert shown("schema", "--format", "ddl")[0] == "v INT,"
    assert "`ts_us`" in "".join(shown("schema"))
    assert [json.loads(line)["kind"] for line in shown("schema", "--example")] == ["exchange", "event"]


def test_compact(spark: object, tmp_path: Path) -> None:
    """What was done is said; a second run finds nothing new."""
    path = str(write_lines(tmp_path / "a.jsonl", [*LINES, b"nonsense"]))
    out = str(tmp_path / "out")
    said = shown("compact", path, "--out", out)
    assert said[0].startswith("20 lines, 0.0 MB, into 1 hour of ")
    assert said[1] == "left out, being no access records: 1 line; --rejects FILE keeps them"
    assert shown("compact", path, "--out", out) == ["nothing new in 1 file"]


def test_compact_into_what_is_no_folder(spark: object, tmp_path: Path) -> None:
    """Where nothing can be written, that is said before any work is done."""
    path = str(write_lines(tmp_path / "a.jsonl", LINES))
    started = forked("logs", "compact", path, "--out", path)
    result = subprocess.run(started, capture_output=True, text=True, env=os.environ | {"JAVA_HOME": "/nowhere"})
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith("tricklecast: cannot write to")
