"""Logs of one run, written by the server and by the proxy in front of it, say the same.

Recorded: misbehaving clients through nginx 1.22 and Caddy 2.6, each request logged by the server, and by nginx in four
formats at once. Four of the channels were kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import pytest

from tests.analytics.lines.traffic import Row, read_files, rows_in
from tricklecast.analytics.lines import Format, Reading, find_logs
from tricklecast.analytics.lines.embedded import read_lines
from tricklecast.analytics.rules.incidents import Incident, incidents
from tricklecast.analytics.scan import embedded

DATA = Path(__file__).parent / "data"
NOW_US = 1_800_000_000_000_000

WITH_HEADERS = [("behind-nginx.jsonl", "nginx.log"), ("behind-caddy.jsonl", "caddy.log")]
"""The server's log, and that of a proxy that logs our headers."""

WITHOUT = ["timed.log", "combined.log", "plain.log"]
"""Logs of nginx that do not have our headers."""


@cache
def judged(name: str) -> tuple[list[Row], list[Incident], Sequence[Format]]:
    """The requests on the recorded channels, the incidents, and the formats of the log."""
    with embedded.connect(0) as connection:
        lines = read_lines(connection, find_logs([str(DATA / f"{name}.gz")]), Reading(), NOW_US)
        rows = [row for row in rows_in(connection) if row["channel"] and row["kind"] == "exchange"]
        return rows, incidents(connection), lines.recognised.formats


def counted(rows: Iterable[Row], *columns: str) -> Counter[tuple[object, ...]]:
    """How often each combination occurs."""
    return Counter(tuple(row[column] for column in columns) for row in rows)


@pytest.mark.parametrize(("own", "foreign"), WITH_HEADERS)
def test_a_proxy_that_logs_our_headers_says_what_the_server_says(own: str, foreign: str) -> None:
    """Who asked for what, and the answer, are the same line by line."""
    columns = ("op", "method", "status", "channel", "seq", "eos", "client", "release", "bytes_out")
    mine, theirs = (counted(judged(name)[0], *columns) for name in (own, foreign))
    assert sum(theirs.values()) > 200
    assert theirs == mine


@pytest.mark.parametrize(("own", "foreign"), WITH_HEADERS)
def test_loops_are_found_behind_a_proxy(own: str, foreign: str) -> None:
    """The server's own log has forty connections of the proxy for sixty requests of one client; all four loops of a few
    seconds are found in it, whole, and in the proxy's log as well."""
    loops = ("zero_byte_loop", "ended_loop", "not_found_loop", "seq_ahead_sweep")
    for name in (own, foreign):
        assert {str(one.storm): (one.n, len(one.clients)) for one in judged(name)[1]} == dict.fromkeys(loops, (60, 1))


@pytest.mark.parametrize(("own", "foreign"), WITH_HEADERS)
def test_arrivals_are_those_at_the_server(own: str, foreign: str) -> None:
    """A proxy logs the end of a request; its beginning is found again, long waits included."""
    key = ("client", "channel", "op", "seq")
    mine, theirs = (
        sorted(
            (tuple(repr(row[name]) for name in key), row["ts_us"])
            for row in judged(log)[0]
            if row["status"] is not None
        )
        for log in (own, foreign)
    )
    assert [asked for asked, _ in mine] == [asked for asked, _ in theirs]
    # On its way to the server a request is a little earlier at the proxy; both clocks are one.
    assert max(abs(one - other) for (_, one), (_, other) in zip(mine, theirs, strict=True)) < 250_000


@pytest.mark.parametrize("foreign", WITHOUT)
def test_a_proxy_without_our_headers_says_what_it_can(foreign: str) -> None:
    """Requests and answers are the same; no loop is told that the server's log does not have."""
    columns = ("op", "method", "status", "channel", "seq", "release", "bytes_out")
    rows, told, _ = judged(foreign)
    own, loops, _ = judged("behind-nginx.jsonl")
    assert counted(rows, *columns) == counted(own, *columns)
    assert {(one.storm, one.n) for one in told} <= {(one.storm, one.n) for one in loops}
    assert told


def test_formats_and_their_resolution_are_told() -> None:
    """Of a log in whole seconds this is said, whatever comes after the time in its lines."""
    found = {}
    for name in [*WITHOUT, "nginx.log", "caddy.log"]:
        (form,) = judged(name)[2]
        found[name] = form.name, form.coarse
    assert found == {
        "timed.log": ("combined", False),
        "combined.log": ("combined", True),
        "plain.log": ("nginx", True),
        "nginx.log": ("nginx", False),
        "caddy.log": ("caddy", False),
    }


def test_whole_seconds_stay_whole() -> None:
    """A duration in milliseconds does not make a time in seconds any finer."""
    rows, *_ = judged("plain.log")
    assert {row["ts_us"] % 1_000_000 for row in rows} == {0}


def test_clients_by_another_key() -> None:
    """The client key is made of the fields that were asked for."""
    rows, _ = read_files(str(DATA / "nginx.log.gz"), client_key="hostname+ip")
    assert {row["client"] for row in rows} == {"vm+127.0.0.1"}
