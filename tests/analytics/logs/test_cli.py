"""``tricklecast logs``, as it is typed."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.analytics.lines.test_formats import FOREIGN
from tests.analytics.lines.traffic import NATIVE, write
from tests.support.forked import forked
from tests.support.waiting import eventually
from tricklecast.analytics.lines import UnknownFormat, embedded
from tricklecast.app.cli import cli

LINES = [
    NATIVE.replace(b'"film"', b'"film-%d"' % number).replace(
        b'"status":200', b'"status":404' if number % 2 else b'"status":200'
    )
    for number in range(20)
]


def shown(*arguments: str, code: int = 0) -> list[str]:
    """What a command prints."""
    result = CliRunner().invoke(cli, ["logs", *arguments])
    assert result.exit_code == code, result.output
    return result.stdout.splitlines()


def test_tail(tmp_path: Path) -> None:
    """The last ten lines, or as many as asked for, of those that are wanted; raw on request."""
    path = write(tmp_path / "a.jsonl", [*LINES, b"", b"\xff"])
    assert [line.split("film-")[-1].split("/")[0] for line in shown("tail", path)] == [
        *(str(number) for number in range(11, 20)),
        "\ufffd",
    ]
    assert len(shown("tail", "-n", "3", path)) == 3
    assert shown("tail", "-n", "0", path) == []
    failures = shown("tail", "--failures", "-n", "2", path)
    assert [line.split()[3] for line in failures] == ["404", "404"]
    (raw,) = shown("tail", "--raw", "--channel", "film-7", path)
    assert json.loads(raw)["channel"] == "film-7"


def test_tail_of_a_status_that_is_none(tmp_path: Path) -> None:
    """It is wrong usage: no line would ever be shown."""
    path = write(tmp_path / "a.jsonl", LINES)
    for typed in ("abc", "4xxx", "xx5y", "-1", ""):
        result = CliRunner().invoke(cli, ["logs", "tail", path, "--status", "404", "--status", typed])
        assert result.exit_code == 2
        assert "such as 404, 5xx or 4*" in result.output
    for typed in ("404", "4xx", "4XX", "4*"):
        assert {line.split()[3] for line in shown("tail", path, "--status", typed)} == {"404"}


def test_tail_of_a_long_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read from its end, in blocks, whatever lies where they meet; of an archive from its beginning."""
    monkeypatch.setattr("tricklecast.analytics.logs.tail._STEP", 100)
    path = write(tmp_path / "a.log", LINES * 10)
    wanted = shown("tail", "-n", "150", path)
    assert [line.split("film-")[1].split("/")[0] for line in wanted] == [str(number % 20) for number in range(50, 200)]
    packed = write(tmp_path / "a.log.gz", gzip.compress(b"\n".join(LINES * 10) + b"\n"))
    assert shown("tail", "-n", "150", packed) == wanted


@pytest.mark.parametrize("name", FOREIGN)
def test_tail_of_any_format(name: str, tmp_path: Path) -> None:
    """A proxy's log shows what the server's own does."""
    lines = shown("tail", "-n", "100", write(tmp_path / "access.log", FOREIGN[name][0]))
    assert len(lines) == 21
    assert sum(" 470 read    film/9" in line for line in lines) == 1


def test_tail_of_parquet(tmp_path: Path) -> None:
    """It shows what the log shows that it was made of."""
    path = write(tmp_path / "access.log", FOREIGN["nginx"][0])
    lines = shown("tail", "-n", "100", path)
    shown("compact", path, "--output", str(tmp_path / "out"))
    assert sorted(shown("tail", "-n", "100", str(tmp_path / "out"))) == sorted(lines)


def test_tail_of_what_cannot_be_read(tmp_path: Path) -> None:
    """A file that is not there, or of no known format, is one line, and exit code 3."""
    result = subprocess.run(forked("logs", "tail", tmp_path / "missing.jsonl"), capture_output=True, text=True)
    assert (result.returncode, result.stderr.count("\n")) == (3, 1)
    assert result.stderr.startswith("tricklecast: no such log")
    unknown = CliRunner().invoke(cli, ["logs", "tail", write(tmp_path / "a.txt", b"words\n")])
    assert isinstance(unknown.exception, UnknownFormat)


def test_tail_follows_until_it_is_interrupted(tmp_path: Path) -> None:
    """New lines are shown as they come, across a rotation; Ctrl-C ends it without a word."""
    path = Path(write(tmp_path / "a.jsonl", LINES[:1]))
    output = tmp_path / "output"
    with output.open("wb") as stdout:
        tail = subprocess.Popen(forked("logs", "tail", "-f", path), stdout=stdout, stderr=subprocess.PIPE)
    try:
        eventually(lambda: "film-0" in output.read_text())
        with path.open("ab") as file:
            file.write(LINES[1] + b"\n")
        eventually(lambda: "film-1/" in output.read_text())
        path.rename(tmp_path / "a.jsonl.1")
        write(path, LINES[2:3])
        eventually(lambda: "film-2/" in output.read_text())
        tail.send_signal(signal.SIGINT)
        _, said = tail.communicate(timeout=120)
    finally:
        tail.kill()
    assert (tail.returncode, said) == (130, b"")
    assert output.read_text().count("\n") == 3


def test_tail_of_standard_input() -> None:
    """All of it is shown, as it comes."""
    result = subprocess.run(forked("logs", "tail", "-"), input=b"\n".join(LINES), capture_output=True)
    assert (result.returncode, result.stdout.count(b"film-")) == (0, 20)


def test_schema() -> None:
    """It is JSON."""
    assert "ts_us" in json.loads("\n".join(shown("schema")))["properties"]


def test_compact(tmp_path: Path) -> None:
    """What was done is said; a second run finds nothing new."""
    path = write(tmp_path / "a.jsonl", [*LINES, b"nonsense", b"x" * 5000])
    out = str(tmp_path / "out")
    said = shown("compact", path, "--output", out)
    assert said[0].startswith("20 lines, 0.0 MB, into 1 hour of ")
    assert said[1:] == [
        "left out, because they are not access records: 2 lines, such as",
        f"  {path}: 'nonsense' (unreadable)",
        f"  {path}: '{'x' * 100}'… (unreadable)",
    ]
    assert shown("compact", path, "--output", out) == ["1 file had nothing new"]


def test_ctrl_c_while_lines_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DuckDB makes an error of its own of it. The command ends with 130 and no trace, and the next run is whole."""
    path, out = write(tmp_path / "a.jsonl", LINES), str(tmp_path / "out")
    read = embedded._batches

    def interrupted(*arguments: Any) -> Iterator[Any]:
        for batch in read(*arguments):
            signal.raise_signal(signal.SIGINT)
            yield batch

    monkeypatch.setattr(embedded, "_batches", interrupted)
    result = CliRunner().invoke(cli, ["logs", "compact", path, "--output", out])
    assert (result.exit_code, type(result.exception)) == (130, SystemExit), result.output
    monkeypatch.undo()
    assert shown("compact", path, "--output", out)[0].startswith("20 lines,")


def test_compact_into_what_is_no_folder(tmp_path: Path) -> None:
    """Where nothing can be written, that is said before any work is done."""
    path = write(tmp_path / "a.jsonl", LINES)
    result = subprocess.run(forked("logs", "compact", path, "--output", path), capture_output=True, text=True)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith("tricklecast: cannot write to")
