"""Why something is an incident: figures beside the thresholds that decide, of every class."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

import duckdb
import pytest

from tests.analytics.report.sample import report_of
from tests.analytics.support.scenarios import write_all
from tests.analytics.support.writer import write_lines
from tricklecast.analytics.lines import Reading, find_logs
from tricklecast.analytics.lines.embedded import read_lines
from tricklecast.analytics.report import build
from tricklecast.analytics.report.explain import explanation, reasons
from tricklecast.analytics.report.model import ReportedIncident
from tricklecast.analytics.rules import engine
from tricklecast.analytics.rules.classes import StormClass
from tricklecast.analytics.rules.incidents import incidents
from tricklecast.analytics.rules.params import Params
from tricklecast.analytics.scan import embedded

WEB = (
    ("401", 900, 0.1, "192.0.2.7"),
    ("302", 60, 0.2, "192.0.2.8"),
    ("204", 200, 0.1, "192.0.2.9"),
    ("404", 100, 0.1, "192.0.2.10"),
)
"""Loops on a web server: status, how many, pause, client."""


def web_log(path: Path, loops: Sequence[tuple[str, int, float, str]] = WEB) -> Path:
    lines = [
        f"{client} - - [09/Oct/2025:08:{int(n * pause) // 60:02}:{int(n * pause) % 60:02} +0000]"
        f' "GET /{status} HTTP/1.1" {status} 0 "-" "app/2"\n'
        for status, count, pause, client in loops
        for n in range(count)
    ]
    path.write_text("".join(lines))
    return path


def crowd_log(path: Path) -> Path:
    """200 clients that each try ten times, a second apart, after a deploy."""
    lines = [
        f"10.0.{n // 250}.{n % 250} - - [09/Oct/2025:08:00:{t + n * 7 % 10 // 10:02} +0000]"
        f' "GET /api HTTP/1.1" 503 0 "-" "app/{n % 3}"\n'
        for t in range(10)
        for n in range(200)
    ]
    path.write_text("".join(lines))
    return path


def read(con: duckdb.DuckDBPyConnection, *paths: Path) -> None:
    read_lines(con, find_logs(list(map(str, paths))), Reading())


def judged(paths: Sequence[Path], params: Params) -> list[tuple[ReportedIncident, dict[str, list[str]], str]]:
    """An incident of each class in some logs, why it is one, and all that ``--explain`` prints."""
    with embedded.connect(0) as con:
        read(con, *paths)
        every = incidents(con, params=params)
        report, numbers = report_of(con, every, params), {one.id: one.number for one in every}
        found = []
        for entry in {one.storm: one for one in report.incidents}.values():
            steps = tuple(engine.explain(con, numbers[entry.id]))
            found.append((entry, reasons(entry, steps, params), "\n".join(explanation(report, entry.id, steps))))
        return found


def test_every_class_says_why(tmp_path: Path) -> None:
    """A figure, and the thresholds to which it is held, as they are set and as a command line has them."""
    # Also beside traffic of our own.
    params = replace(Params(), slow_hits=29, generic=1)
    told: set[StormClass] = set()
    own = write_lines(tmp_path / "log.jsonl", write_all(7)[0])
    for entry, why, _ in judged([own, web_log(tmp_path / "web.log"), crowd_log(tmp_path / "crowd.log")], params):
        told |= {phase.storm for phase in entry.phases}
        storm, *classes, severity = why.values()
        assert all((storm, *classes)), entry.id
        assert len(severity) == 3
        assert {f"Why it is {entry.storm}", f"Why it is {entry.severity}"} <= set(why)
        for sentence in (*storm, *severity):
            settings = dict(re.findall(r"--set (\w+)=(\S+?)(?=[ )])", sentence))
            assert settings, sentence
            assert settings == {name: f"{getattr(params, name):g}" for name in settings}
        assert "None" not in str(why)
    assert told == set(StormClass)


def test_the_thresholds_that_are_named_are_those_that_decide(tmp_path: Path) -> None:
    """Raised above the figures, the loop is no incident; raised too little, it is."""
    path = web_log(tmp_path / "web.log", WEB[:1])
    ((_, why, shown),) = judged([path], Params())
    assert why["Why it is a storm"] == [
        "900 requests of 192.0.2.7 in 89 s, 10/s at most: 8 are enough at 8/s (--set fast_hits=8 --set fast_rps=8)",
        "900 requests of 192.0.2.7 in 89 s, 10/s at most: 30 are enough at any pace (--set slow_hits=30)",
    ]
    first, *rest = shown.split("\n\n")
    assert first.startswith("INCIDENT 1 ")
    assert [part.split(":")[0] for part in rest[:4]] == [
        "Why it is a storm",
        "Why it is web_loop",
        "Why it is warn",
        "Its lines",
    ]
    names = {name for sentence in why["Why it is a storm"] for name in re.findall(r"--set (\w+)", sentence)}
    assert names == {"fast_hits", "fast_rps", "slow_hits"} <= {field.name for field in fields(Params)}
    with embedded.connect(0) as con:
        read(con, path)
        for hits, still in ((900, True), (901, False)):
            assert bool(incidents(con, params=replace(Params(), slow_hits=hits, fast_hits=901))) == still


def test_why_without_the_tables_of_the_first_steps(tmp_path: Path) -> None:
    """With Spark they are not on the driver: the reasons need none of them."""
    with embedded.connect(0) as con:
        read(con, crowd_log(tmp_path / "crowd.log"))
        (one,) = incidents(con)
        (entry,) = report_of(con, [one], Params()).incidents
        for table in ("candidate", "stretches", "fleet_seconds"):
            con.execute(f"DROP TABLE {table}")
        why = reasons(entry, tuple(engine.explain(con, one.number)), Params())
    assert any("200 clients" in sentence for sentence in why["Why it is a storm"])


def test_only_the_worst_incidents_of_a_report_have_mitigations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """200 of them, since a report of thousands would consist of them; ``--explain`` makes them of any."""
    assert build.MAX_MITIGATED == 200
    monkeypatch.setattr(build, "MAX_MITIGATED", 2)
    with embedded.connect(0) as con:
        read(con, web_log(tmp_path / "web.log"))
        found = incidents(con)
        report, numbers = report_of(con, found, Params()), {one.id: one.number for one in found}
        assert [bool(one.mitigations) for one in report.incidents] == [True, True, False, False]
        last = report.incidents[-1].id
        shown = "\n".join(explanation(report, last, tuple(engine.explain(con, numbers[last]))))
    assert "\n\nThe client: " in shown
