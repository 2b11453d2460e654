"""``tricklecast storms`` from its arguments to its exit code."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer
from typer.testing import CliRunner, Result

from tests.analytics.support.scenarios import ended_then_not_found, flash_crowd, not_found_drip, write_all
from tests.analytics.support.writer import LogWriter, write_lines
from tricklecast.analytics.command.cli import storms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("spark")


def invoke(*arguments: object) -> Result:
    """Runs the command in this process, with the session that is already there."""
    app = typer.Typer()
    app.command()(storms)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def naive_log(**names: str) -> list[str]:
    """The log of a naive client around a channel's end."""
    log = LogWriter("n1", random.Random(3))
    ended_then_not_found(log)
    for record in log.records:
        if record.client == "naive":
            record.client = names.get("client", "naive")
        record.channel = names.get("channel", record.channel)
    return log.lines()


@pytest.fixture
def naive(tmp_path: Path) -> Path:
    """A file with that log."""
    return write_lines(tmp_path / "access.jsonl", naive_log())


def test_the_naive_client_is_found(naive: Path, tmp_path: Path) -> None:
    """The client that asks for a dead segment is found, in both of its phases, with trigger, cause and advice."""
    result = invoke(naive, "--json", tmp_path / "report.json")
    assert result.exit_code == 1
    assert "ended_loop" in result.stdout
    assert "channel_end" in result.stdout
    assert "storms: reading 1 file" in result.stderr
    document = json.loads((tmp_path / "report.json").read_text())
    told = [(e["class"], e["n"], e["clients"], e["channels"], e["trigger"], e["seq_lo"]) for e in document["episodes"]]
    assert told == [
        ("ended_loop", 180, ["naive"], ["film"], "channel_end", 10),
        ("not_found_loop", 60, ["naive"], ["film"], "channel_end", 10),
    ]
    assert document["totals"]["requests"] == 250
    assert document["totals"]["repeats"] == 180 + 60 - 1
    quality = {"lines": 251, "unparsable": 0, "events": 1, "dropped": 0, "anonymous": 0, "missing_columns": []}
    assert document["quality"].items() >= quality.items()
    assert not (tmp_path / "report.json.tmp").exists()


def test_json_on_stdout(naive: Path) -> None:
    """With --json - stdout is the document and nothing else."""
    result = invoke(naive, "--json", "-", "--fail-on", "never")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["n_episodes"] == 2


def test_no_storm(tmp_path: Path) -> None:
    """A flash crowd is no storm: exit code 0."""
    log = LogWriter("n1", random.Random(3))
    flash_crowd(log)
    result = invoke(write_lines(tmp_path / "access.jsonl", log.lines()))
    assert result.exit_code == 0
    assert result.stdout.startswith("No retry storms.")


def test_fail_on(tmp_path: Path) -> None:
    """A warning fails by default, and not with --fail-on critical."""
    log = LogWriter("n1", random.Random(3))
    not_found_drip(log)
    path = write_lines(tmp_path / "access.jsonl", log.lines())
    assert invoke(path).exit_code == 1
    assert invoke(path, "--fail-on", "critical").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([], 2),
        (["LOG", "--fail-on", "sometimes"], 2),
        (["LOG", "--json", "absent/report.json"], 2),
        (["LOG", "--json", "/"], 2),
        (["missing.jsonl"], 3),
        (["empty.jsonl"], 3),
    ],
)
def test_wrong_use(arguments: list[str], code: int, naive: Path, tmp_path: Path) -> None:
    """Wrong arguments are usage errors, missing or empty logs bad input; neither shows a stack."""
    (tmp_path / "empty.jsonl").touch()
    inside = ("missing.jsonl", "empty.jsonl", "absent/report.json")
    names = {"LOG": str(naive)} | {name: f"{tmp_path}/{name}" for name in inside}
    result = invoke(*[names.get(argument, argument) for argument in arguments])
    assert result.exit_code == code
    assert "Traceback" not in result.stderr
    assert (code == 2) or result.stderr.splitlines()[-1].startswith("tricklecast: ")


def test_too_many_broken_lines(tmp_path: Path) -> None:
    """Above one per cent of unparsable lines the report is shown, and not trusted; at one per cent it is."""
    good = naive_log()[:99]
    at_limit = write_lines(tmp_path / "a.jsonl", [*good, "{"])
    assert invoke(at_limit, "--fail-on", "never").exit_code == 0
    result = invoke(write_lines(tmp_path / "b.jsonl", [*good, "{", "}"]))
    assert result.exit_code == 3
    assert "2 unparsable" in result.stdout
    assert "2 of 101 lines (2.0%)" in result.stderr


def test_verbose_shows_the_stack(tmp_path: Path) -> None:
    """With -v the whole error is shown, with the same exit code."""
    result = invoke(tmp_path / "missing.jsonl", "-v")
    assert result.exit_code == 3
    assert "Traceback" in result.stderr


def test_hostile_names_and_files(tmp_path: Path) -> None:
    """Markup, escape codes and giant names in a log, awkward file names and a cut gzip: a report, nothing obeyed."""
    hostile = "\x1b]0;owned\x07[red]\u202e"
    write_lines(tmp_path / "a:b [1].jsonl", naive_log(client=hostile, channel="[bold]film" + "y" * 1_000_000))
    cut = gzip.compress("".join(line + "\n" for line in naive_log()).encode())
    (tmp_path / "cut.jsonl.gz").write_bytes(cut[: len(cut) // 2])
    result = invoke(tmp_path, "--json", tmp_path / "report.json")
    assert result.exit_code in {1, 3}  # where gzip was cut decides whether a half line remains
    assert not [char for char in result.stdout if not char.isprintable() and char != "\n"]
    assert "[red]" in result.stdout
    document = json.loads((tmp_path / "report.json").read_text())
    assert hostile in {name for episode in document["episodes"] for name in episode["clients"]}
    assert document["quality"]["damaged_files"] == [str(tmp_path / "cut.jsonl.gz")]


def test_order_and_files_do_not_matter(spark: SparkSession, tmp_path: Path) -> None:
    """Shuffled, split over plain and compressed files, in another time zone: the same report."""
    lines, _ = write_all(seed=7)
    write_lines(tmp_path / "whole.jsonl", lines)
    random.Random(1).shuffle(lines)
    split = tmp_path / "split"
    split.mkdir()
    for part in range(3):
        data = "".join(line + "\n" for line in lines[part::3]).encode()
        (split / f"{part}.jsonl.gz").write_bytes(gzip.compress(data))
    documents: list[dict[str, Any]] = []
    try:
        for path, zone in ((tmp_path / "whole.jsonl", "UTC"), (split, "Asia/Kathmandu")):
            spark.conf.set("spark.sql.session.timeZone", zone)
            documents.append(json.loads(invoke(path, "--json", "-").stdout))
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    for document in documents:
        document.pop("inputs")
    assert documents[0] == documents[1]
