"""An incident, and reports made of logs, for the tests of their forms."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from duckdb import DuckDBPyConnection

from tests.analytics.support.jsonl import read_jsonl
from tricklecast.analytics.report import figures
from tricklecast.analytics.report.build import LogsRead, build
from tricklecast.analytics.report.model import LogLine, Report
from tricklecast.analytics.rules.classes import WORDS, StormClass
from tricklecast.analytics.rules.incidents import Confidence, Impact, Incident, Phase, Severity, incidents
from tricklecast.analytics.rules.params import Params
from tricklecast.analytics.scan import embedded

NO_IMPACT: Final = Impact(0.0, 0.0, 0.0, 0, 0, 0, 0, False)

SINCE_US: Final = 10_000_000


def sample_incident(storm: StormClass) -> Incident:
    """One client, 90 requests in 18 s, of one phase."""
    return Incident(
        id="0123456789ab",
        fingerprint="c0ffee123456",
        number=1,
        storm=storm,
        instead=None,
        confidence=Confidence.HIGH,
        severity=Severity.WARN,
        clients=("player-1",),
        named=True,
        release="myplayer/1.4",
        ua="myplayer/1.4",
        channels=("film",),
        seq_lo=17,
        seq_hi=17,
        nodes=("n1",),
        n=90,
        peak_rps=5.0,
        mean_rps=5.0,
        since_us=SINCE_US,
        until_us=SINCE_US + 18_000_000,
        pace=None,
        pause_ms=None,
        held_s=0.0,
        trigger=None,
        trigger_us=None,
        ended_us=None,
        phases=(Phase(storm, 90, SINCE_US, SINCE_US + 18_000_000),),
        impact=NO_IMPACT,
        passed=False,
        side=WORDS[storm].side,
        cause=WORDS[storm].cause,
        fix=WORDS[storm].advice,
        samples=(),
    )


def report_on(paths: list[Path]) -> Report:
    """The report on some of our own logs, with the first line of the first file for every incident."""
    with embedded.connect() as connection:
        read_jsonl(connection, paths)
        found = incidents(connection)
        line = LogLine(paths[0].read_text(encoding="utf-8").partition("\n")[0], paths[0].name, 1)
        lines = {one.id: (line,) for one in found}
        figures.prepare(connection)
        return build(connection, found, LogsRead("embedded", tuple(map(str, paths))), lines=lines)


def report_of(connection: DuckDBPyConnection, found: Sequence[Incident], params: Params) -> Report:
    """The report on incidents of a connection."""
    figures.prepare(connection)
    return build(connection, found, LogsRead("embedded"), params=params)
