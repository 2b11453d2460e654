"""``storms check`` shows what is understood of a log, and how to go on where nothing is."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pytest
from typer.testing import CliRunner

from tests.analytics.lines.test_real_logs import CASES, IP, ISO, MS250, US, WRAPPED, WRAPPINGS, check, one_row
from tests.analytics.lines.traffic import write
from tests.support.long import mostly_long
from tricklecast.app.cli import cli

ODD = ["2025-10-09T08:53:20Z 203.0.113.7 /a ok", '{"when": 1, "verb": "GET", "took": 5}']


@pytest.mark.parametrize("name", mostly_long(WRAPPED, 3))
def test_a_known_log(tmp_path: Path, name: str) -> None:
    """The command shows the format, the wrapping and each field of a line, with the columns that it is from."""
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
    """Where the format is unknown, the columns are shown in the form of a map, and what is missing is named."""
    (tmp_path / "a.log").write_text(f"{line}\n")
    result = CliRunner().invoke(cli, ["storms", "check", str(tmp_path / "a.log")])
    assert result.exit_code == 3
    assert "[fields]" in result.stdout
    assert "No column looks like a " in result.stdout


def test_a_damaged_archive(tmp_path: Path) -> None:
    """It is told from an empty file."""
    for name, content, said in (("a.log.gz", b"\x1f\x8b\x08abc", "damaged"), ("b.log", b"", "no lines")):
        (tmp_path / name).write_bytes(content)
        result = CliRunner().invoke(cli, ["storms", "check", str(tmp_path / name)])
        assert (result.exit_code, said in result.stdout) == (3, True), result.output


DRAFTED = {
    "tabs": f"{ISO}+00:00\t{IP}\tGET /api/v1?x=1 HTTP/1.1\t401\t0.020\tbad/1",
    "bars": f"{ISO}Z|{IP}|GET|/api/v1?x=1|401|20|bad/1",
    "CloudFront, real time": f"{US / 1e6:.3f}\t{IP}\t0.020\t401\t10\tGET\thttps\td1\t/api/v1?x=1\tbad/1",
    "words": f"{ISO}Z GET /api/v1?x=1 {IP} -> 401",
    "in a container": f"{ISO}.100Z stdout F {ISO}Z|{IP}|GET|/api/v1?x=1|401|20|bad/1",
    "quoted": f'"{ISO}Z","{IP}","GET","/api/v1?x=1","401"',
    "JSON": json.dumps({"when": ISO + "Z", "how": "GET", "what": "/api/v1?x=1", "answer": 401, "who": IP}),
}


@pytest.mark.parametrize("name", DRAFTED)
def test_a_drafted_map_works_as_it_is(tmp_path: Path, name: str) -> None:
    """What the draft has in it is right, and the log can be read with it."""
    log = write(tmp_path / "a.log", [DRAFTED[name].encode()] * 3)
    result = CliRunner().invoke(cli, ["storms", "check", log])
    assert (result.exit_code, "\\u" in result.stdout) == (3, False)
    (tmp_path / "a.toml").write_text(result.stdout.partition("--format log.toml\n")[2])
    check(one_row(log, format=str(tmp_path / "a.toml")), ([], US, None, IP))


def test_a_table_whose_first_line_names_its_columns(tmp_path: Path) -> None:
    """CSV with names is read without a map; the names are no request."""
    lines = ["time,client_ip,method,path,status,took_ms", *[f"{ISO}.270Z,{IP},GET,/api/v1,401,20"] * 3]
    check(one_row(write(tmp_path / "a.csv", [line.encode() for line in lines])), ([], MS250, 20_000, IP))


def test_pipes_folders_and_parquet(tmp_path: Path) -> None:
    """Whatever can be judged can be checked; files that are passed over are named."""
    write(tmp_path / "access.log", [CASES["combined"][0][0].encode()])
    (tmp_path / "notes.txt").write_text("a word\n")
    with duckdb.connect() as con:
        con.execute(f"COPY (SELECT {US} AS ts_us, 'exchange' AS kind, 'GET' AS method, 401 AS status, 'c' AS client)"
                    f" TO '{tmp_path / 'rows.parquet'}' (FORMAT parquet)")  # fmt: skip
    result = CliRunner().invoke(cli, ["storms", "check", str(tmp_path)])
    assert result.exit_code == 0, result.output
    for told in ("format: combined", "format: parquet", "notes.txt\n  passed over", "client: c\n"):
        assert told in result.stdout
    line = CASES["nginx JSON"][0][0]
    result = CliRunner().invoke(cli, ["storms", "check", "-"], input=f"{line}\n")
    assert (result.exit_code, "standard input\n  format: nginx" in result.stdout) == (0, True), result.output
