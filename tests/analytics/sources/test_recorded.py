"""Logs of one run, written by the server and by the proxy in front of it, say the same.

Recorded: misbehaving clients (``tricklecast simulate --live``) through nginx 1.22 and Caddy 2.6, each request logged by
the server, and by nginx in four formats at once. Four of the channels were kept.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from tests.analytics.conftest import Known
from tricklecast.analytics.inputs import find_logs
from tricklecast.analytics.normalise import answer_kind
from tricklecast.analytics.sources import Reading, read_logs, recognise

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

DATA = Path(__file__).parent / "data"

WITH_HEADERS = [("behind-nginx.jsonl", "nginx.log"), ("behind-caddy.jsonl", "caddy.log")]
"""Logs of proxies that write down what our headers say."""

WITHOUT = ["timed.log", "combined.log", "plain.log"]
"""Logs of nginx that do not."""


def lines_of(spark: SparkSession, name: str, reading: Reading | None = None) -> DataFrame:
    """The requests about the recorded channels."""
    lines = read_logs(spark, find_logs([str(DATA / f"{name}.gz")]), reading).withColumn("answer", answer_kind())
    return lines.where(F.col("channel").isNotNull() & (F.col("kind") == "exchange"))


@pytest.fixture(scope="module")
def rows_of(spark: SparkSession) -> Callable[[str], list[Row]]:
    """The same as rows, each log read once for all tests."""
    return cache(lambda name: lines_of(spark, name).collect())


def counted(rows: list[Row], *columns: str) -> Counter[tuple[object, ...]]:
    """How often each combination occurs."""
    return Counter(tuple(row[column] for column in columns) for row in rows)


@pytest.mark.parametrize(("own", "foreign"), WITH_HEADERS)
def test_a_proxy_that_logs_our_headers_says_what_the_server_says(
    rows_of: Callable[[str], list[Row]], own: str, foreign: str
) -> None:
    """Who asked for what, and what became of it, is the same line by line."""
    columns = ("answer", "op", "method", "status", "channel", "seq", "client", "release", "bytes_out")
    mine, theirs = (counted(rows_of(name), *columns) for name in (own, foreign))
    assert sum(theirs.values()) > 200
    assert theirs == mine


def test_loops_are_found_behind_a_proxy(known: Known) -> None:
    """The server's own log has forty connections of the proxy for sixty requests of one client; all four loops of a few
    seconds are found in it, whole."""
    lines = gzip.decompress((DATA / "behind-nginx.jsonl.gz").read_bytes()).splitlines()
    (node,) = {json.loads(line)["node"] for line in lines}
    told = {str(it.storm): (it.n, it.n_clients) for it in known.report.episodes if it.node == node}
    loops = ("zero_byte_loop", "ended_loop", "not_found_loop", "seq_ahead_sweep")
    assert told == dict.fromkeys(loops, (60, 1))


@pytest.mark.parametrize(("own", "foreign"), WITH_HEADERS)
def test_arrivals_are_those_at_the_server(rows_of: Callable[[str], list[Row]], own: str, foreign: str) -> None:
    """A proxy logs the end of a request; its beginning is found again, long waits included."""
    key = ("client", "channel", "op", "seq")
    mine, theirs = (
        sorted(
            (tuple(map(repr, (row[name] for name in key))), row["ts_us"])
            for row in rows_of(log)
            if row["status"] is not None
        )
        for log in (own, foreign)
    )
    assert [asked for asked, _ in mine] == [asked for asked, _ in theirs]
    # On its way to the server a request is a little earlier at the proxy; both clocks are one.
    assert max(abs(one - other) for (_, one), (_, other) in zip(mine, theirs, strict=True)) < 250_000


@pytest.mark.parametrize("foreign", WITHOUT)
def test_a_proxy_that_does_not_log_them_says_what_it_can(rows_of: Callable[[str], list[Row]], foreign: str) -> None:
    """Without our headers an ended channel looks like an empty segment; all else is the same."""
    columns = ("answer", "op", "method", "status", "channel", "seq", "release", "bytes_out")
    mine = counted(rows_of("behind-nginx.jsonl"), *columns)
    told: Counter[tuple[object, ...]] = Counter()
    for (answer, *rest), number in mine.items():
        told[("zero_byte" if answer == "ended" else answer, *rest)] += number
    assert counted(rows_of(foreign), *columns) == told


def test_formats_and_their_resolution_are_told() -> None:
    """What is written in whole seconds is said to be, whatever comes after it in the line."""
    found = {name: recognise(find_logs([str(DATA / f"{name}.gz")])) for name in [*WITHOUT, "nginx.log", "caddy.log"]}
    assert {name: (*grouped.formats, grouped.coarse) for name, grouped in found.items()} == {
        "timed.log": ("combined", False),
        "combined.log": ("combined", True),
        "plain.log": ("nginx", True),
        "nginx.log": ("nginx", False),
        "caddy.log": ("caddy", False),
    }


def test_whole_seconds_stay_whole(rows_of: Callable[[str], list[Row]]) -> None:
    """A duration in milliseconds does not make a time in seconds any finer, and no double is seen in it."""
    rows = rows_of("plain.log")
    assert {row["ts_us"] % 1_000_000 for row in rows} == {0}
    assert {row["conn"] for row in rows} == {None}


def test_clients_by_another_key(spark: SparkSession) -> None:
    """The client key is what was asked for: fields of the log, the first that a line has."""
    by_host = lines_of(spark, "nginx.log", Reading(client_key="http_x_none,hostname+ip"))
    assert {row["client"] for row in by_host.select("client").collect()} == {"vm+127.0.0.1"}
