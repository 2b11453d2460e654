"""``tricklecast storms`` with its options: comparisons, explanations, incremental runs, tables, windows."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
import typer
from typer.testing import CliRunner, Result

from tests.analytics.support.scenarios import ended_then_not_found, flash_crowd
from tests.analytics.support.writer import LogWriter, write_lines
from tricklecast.analytics.command import pipeline
from tricklecast.analytics.command.cli import storms
from tricklecast.analytics.command.pipeline import report_on_state
from tricklecast.analytics.report_old import json_report
from tricklecast.analytics.report_old.model import Report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("spark")


def invoke(*arguments: object) -> Result:
    """Runs the command in this process, with the session that is already there."""
    app = typer.Typer()
    app.command()(storms)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A naive client of one release, and a crowd of another."""
    writer = LogWriter("n1", random.Random(3))
    ended_then_not_found(writer)
    flash_crowd(writer)
    for record in writer.records:
        if record.client is not None:
            record.release = "naive/1.0" if record.client == "naive" else "player/2.0"
    return write_lines(tmp_path_factory.mktemp("log") / "a:b [1].jsonl", writer.lines())


@dataclass(frozen=True, slots=True)
class Told:
    """What a run said: its report, that as a document, its notes to the user, and the tables that it wrote."""

    report: Report
    document: dict[str, Any]
    said: str
    tables: list[str]


@pytest.fixture(scope="module")
def told(log: Path, tmp_path_factory: pytest.TempPathFactory, spark: object) -> Told:
    """An incremental run with all that can be asked of one."""
    folder = tmp_path_factory.mktemp("out")
    asked = ("--baseline", "player/2.0", "--json", "-", "--parquet", folder / "tables", "--set", "gap_s=4")
    reports: list[Report] = []

    def kept(*arguments: Any) -> Report:
        reports.append(report_on_state(*arguments))
        return reports[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "report_on_state", kept)
        result = invoke(log, "--incremental", folder / "state", *asked)
    assert result.exit_code == 1, result.stderr
    tables = sorted(path.name for path in (folder / "tables").iterdir())
    return Told(reports[0], json.loads(result.stdout), result.stderr, tables)


def test_the_report_is_as_its_schema_says(told: Told) -> None:
    """Not only reports made by hand are."""
    schema = json.loads(Path(json_report.__file__).with_name("report.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(told.document)


def test_releases_are_compared_and_tables_written(told: Told) -> None:
    """Several results of one run: the comparison, and the tables that it can be checked against."""
    compared = told.document["comparison"]
    assert (compared["by"], compared["before"], compared["after"]) == ("release", "player/2.0", "all other releases")
    ended = next(ratio for ratio in compared["ratios"] if ratio["name"] == "ended_loop")
    assert (ended["before"], ended["after"], ended["ratio"]) == (0, 180, None)
    assert told.document["params"]["gap_s"] == 4
    assert told.tables == ["episodes", "rollup"]
    assert "storms: comparing" in told.said


def test_a_state_is_reported_on(told: Told) -> None:
    """What is new is taken in, and the report says that it is made from what is kept."""
    assert "reading 1 new log" in told.said
    assert told.document["quality"]["notes"][-1].startswith("From hourly roll-ups: 1 hour, 2025-10-09T08")
    told_of = [(e["class"], e["n"], e["clients"], e["channels"], e["trigger"]) for e in told.document["episodes"]]
    assert told_of == [
        ("ended_loop", 180, ["naive"], ["film"], "channel_end"),
        ("not_found_loop", 60, ["naive"], ["film"], "channel_end"),
    ]


def test_an_episode_is_explained(log: Path, told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lines as they stand in the log, in order; the trigger's line; the pauses: for programs, and as text."""
    episode = told.document["episodes"][0]
    monkeypatch.setattr(pipeline, "report_on_logs", lambda *_: told.report)
    result = invoke(log, "--explain", episode["id"][:6], "--json", tmp_path / "why.json")
    assert result.exit_code == 0, result.stderr
    document = json.loads((tmp_path / "why.json").read_text())
    assert [document["episode"][name] for name in ("id", "class", "n")] == [episode["id"], "ended_loop", 180]
    assert document["n_lines"] == 180
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    wanted = sorted(
        (line for line in lines if line.get("client") == "naive" and line.get("status") == 200 and line.get("eos")),
        key=lambda line: line["ts_us"],
    )
    shown = [json.loads(line["line"]) for line in (*document["first"], *document["last"])]
    assert shown == [*wanted[:20], *wanted[-5:]]
    assert json.loads(document["trigger"]["line"])["event"] == "channel_end"
    assert sum(document["gaps"]["counts"]) == 179
    assert any("hits in" in phrase for phrase in document["arithmetic"])
    for words in ("Arithmetic", "… 155 more …", '"status":200', "Pauses of naive", "What helps"):
        assert words in result.stdout


@pytest.fixture(scope="module")
def report(log: Path, spark: object) -> dict[str, Any]:
    """The plain report on the log; with -q not a word besides."""
    result = invoke(log, "--json", "-", "-q")
    assert (result.exit_code, result.stderr) == (1, "")
    document: dict[str, Any] = json.loads(result.stdout)
    return document


@pytest.mark.long
def test_incremental_runs_say_what_one_run_says(log: Path, report: dict[str, Any], tmp_path: Path) -> None:
    """Over any split of the lines, in any order; the second run, without the first half, knows it all the same."""
    lines = log.read_text().splitlines()
    random.Random(1).shuffle(lines)
    logs = tmp_path / "logs"
    logs.mkdir()
    state = tmp_path / "state"
    write_lines(logs / "a.jsonl", lines[:100])
    assert invoke(logs, "--incremental", state, "-q").exit_code in {0, 1}
    (logs / "a.jsonl").unlink()
    write_lines(logs / "b.jsonl", lines[100:])
    result = invoke(logs, "--incremental", state, "--json", "-")
    document = json.loads(result.stdout)
    document["quality"].pop("notes")
    expected = report | {"inputs": document["inputs"], "quality": dict(report["quality"])}
    expected["quality"].pop("notes")
    document["episodes"], expected["episodes"] = counted(document), counted(report)
    assert document == expected


def counted(document: dict[str, Any]) -> list[Any]:
    """The episodes of a report without an estimate that may differ by a few with the order in which clients are met."""
    return [
        episode | {"blast": (episode["blast"] or {}) | {"healthy_clients": None}} for episode in document["episodes"]
    ]


@pytest.mark.long
def test_every_result_counts_each_line_once(
    spark: SparkSession, log: Path, report: dict[str, Any], tmp_path: Path
) -> None:
    """With a copy of some lines beside a log, tables, states and comparisons are those of the log alone."""
    logs, before, tables, state = (tmp_path / name for name in ("logs", "before", "tables", "state"))
    lines = log.read_text().splitlines()
    for folder, copies in ((logs, lines[50:150]), (before, lines[100:250])):
        folder.mkdir()
        write_lines(folder / "a.jsonl", lines)
        write_lines(folder / "b.jsonl", copies)
    doubled = invoke(logs, "--json", "-", "--parquet", tables, "--baseline", before)
    document = json.loads(doubled.stdout)
    assert document["quality"]["duplicates"] == 100
    assert (counted(document), document["totals"]) == (counted(report), report["totals"])
    rows = spark.read.parquet(str(tables / "rollup")).selectExpr("sum(n)").collect()
    assert rows[0][0] == len(lines)
    ratios = {ratio["name"]: ratio for ratio in document["comparison"]["ratios"]}
    assert all(
        (ratio["before"], ratio["before_of"]) == (ratio["after"], ratio["after_of"]) for ratio in ratios.values()
    )
    assert ratios["ended_loop"]["before"] == 180
    shown = invoke(logs, "--explain", report["episodes"][0]["id"]).stdout
    assert "Lines: 180 lines of the log\n" in shown
    kept = json.loads(invoke(logs, "--incremental", state, "--json", "-").stdout)
    assert kept["quality"]["duplicates"] == 100
    assert (counted(kept), kept["totals"]) == (counted(report), report["totals"])


def test_wrong_use_is_found_before_spark_starts(log: Path) -> None:
    """A time, a threshold, a format or an id that is none is a usage error."""
    for arguments in (
        ["--from", "soon"],
        ["--set", "gap=1"],
        ["--format", "iis"],
        ["--explain", "?"],
        ["--keep", "1d"],
    ):
        result = invoke(log, *arguments)
        assert result.exit_code == 2
        assert "storms: starting" not in result.stderr
