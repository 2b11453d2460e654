"""The whole way in one process: a file that grows, Spark, the detector, the ledger."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.analytics.support.writer import LogWriter
from tests.analytics.watch_old.requests import request
from tests.support.waiting import eventually
from tricklecast.analytics.answers import CODES
from tricklecast.analytics.watch_old.judge import Judge
from tricklecast.analytics.watch_old.ledger import Ledger
from tricklecast.analytics.watch_old.limits import WatchLimits
from tricklecast.analytics.watch_old.news import News
from tricklecast.analytics.watch_old.query import state_schema
from tricklecast.analytics.watch_old.reading import read_health
from tricklecast.analytics.watch_old.run import HEALTH, start_query
from tricklecast.analytics.watch_old.state import MAKER

if TYPE_CHECKING:
    import pytest
    from pyspark.sql import SparkSession

LIMITS = WatchLimits()
WITHIN_S = 120.0
"""Spark takes its time where several test runs share two cores."""


class Told:
    """A receiver that keeps what it is told."""

    name = label = "told"
    refresh_s: float | None = None
    at_once = 1_000

    def __init__(self) -> None:
        self.news: list[News] = []

    def tell(self, news: Sequence[News]) -> None:
        """Keeps it."""
        self.news += news

    @property
    def clients(self) -> list[str]:
        """Whose storms began."""
        return [each["episode"]["clients"][0] for each in self.news if each["status"] == "firing"]


@contextmanager
def watching(spark: SparkSession, log: Path, state: Path, told: Told) -> Iterator[Judge]:
    """A watch, for as long as the context is open."""
    state.mkdir(exist_ok=True)
    wanted = request(log)
    judge = Judge(Ledger(state, wanted.source, LIMITS), wanted.params, LIMITS, told)
    query = start_query(spark, wanted, state, judge, LIMITS)
    try:
        yield judge
        assert query.isActive, str(query.exception())
    finally:
        query.stop()


def storm(log: Path, client: str, channel: str) -> None:
    """Twenty refusals in a fifth of a second."""
    writer = LogWriter("edge-1", random.Random(1))
    for turn in range(20):
        writer.not_found(turn * 0.01, client, channel)
    with log.open("a", encoding="ascii") as file:
        file.writelines(line + "\n" for line in writer.lines())


def test_hostile_lines_and_restarts(spark: SparkSession, tmp_path: Path) -> None:
    """Lines that are no records are counted and harm nobody; what is told before a restart is not told after it.

    Nor after an update, with which Spark's part of the state cannot be used any more.
    """
    log, told = tmp_path / "access.jsonl", Told()
    log.write_bytes(
        b'\xff\xfe\x00 no JSON\n[1,2]\n"text"\nnull\n{"ts_us":"soon"}\n{"v":1}\n\n   \n'
        + b'{"x":"'
        + b"x" * (LIMITS.chunk_bytes + 10)
        + b'"}\n'
    )
    storm(log, "\\ud800\x1b[2J", "first")

    def wait(fact: Callable[[], object]) -> None:
        eventually(fact, within_s=WITHIN_S)

    with watching(spark, log, tmp_path / "state", told) as judge:
        wait(lambda: len(told.news) == 1)
        wait(lambda: judge.detector.unparsable == 7)
    assert told.news[0]["episode"]["n"] == 20
    assert json.dumps(told.news[0])
    storm(log, "b", "second")
    with watching(spark, log, tmp_path / "state", told) as judge:
        wait(lambda: len(told.news) == 2)
        assert len(judge.detector.storms) == 2
        health = read_health(tmp_path / "state" / HEALTH)
        assert health is not None
        assert (health.files, health.problems, health.lost_bytes) == (1, {}, 0)
    assert told.clients[1:] == ["b"]
    (tmp_path / "state" / MAKER).write_text("another version")
    storm(log, "c", "third")
    with watching(spark, log, tmp_path / "state", told):
        wait(lambda: "c" in told.clients)
    assert told.clients[1:] == ["b", "c"]


def test_a_checkpoint_is_of_its_kinds_of_answer(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's state has them as numbers: where those mean something else, it is another state."""
    before = state_schema(spark)
    monkeypatch.setattr("tricklecast.analytics.watch_old.query.CODES", dict.fromkeys(reversed(CODES), 0))
    assert state_schema(spark) != before
