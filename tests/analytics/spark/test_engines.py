"""Both engines give the same roll-up and the same incidents."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.analytics.support.chaos import write_chaos
from tests.analytics.support.scenarios import write_all
from tests.analytics.support.scenes import write_scenes
from tests.analytics.support.writer import write_lines
from tricklecast.analytics.lines import embedded as lines_embedded
from tricklecast.analytics.lines.files import find_logs
from tricklecast.analytics.rules import engine
from tricklecast.analytics.rules.incidents import found, incidents
from tricklecast.analytics.scan import embedded
from tricklecast.analytics.scan.rollup import merge_sql
from tricklecast.analytics.spark import scan as on_spark
from tricklecast.analytics.spark.lines import read_lines

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


NOW_US = 1_760_000_400_000_000


OTHERWISE = {
    "spark.sql.files.maxPartitionBytes": "60000",
    "spark.sql.files.openCostInBytes": "1",
    "spark.sql.shuffle.partitions": "3",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.session.timeZone": "America/Sao_Paulo",
}
"""Settings of a session that somebody else has made, which change no row."""


@pytest.fixture
def settings(spark: SparkSession, corpus: str) -> Iterator[None]:
    """The session as the command has it, or otherwise for one log."""
    chosen = OTHERWISE if corpus == "web" else {}
    before = {name: spark.conf.get(name, None) for name in chosen}
    try:
        for name, value in chosen.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, was in before.items():
            spark.conf.unset(name) if was is None else spark.conf.set(name, was)


def hostile() -> list[str]:
    """Lines whose fields no server writes."""
    return [
        '{"ts_us":1760000000000001,"kind":"exchange","status":404,"client":"\\u0000\\ud83d\\ude00","channel":"a"}',
        '{"ts_us":1760000000000002,"kind":"exchange","status":503,"ip":"::ffff:192.0.2.7"}',
        '{"ts_us":1760000000000003,"kind":"exchange","status":503,"ip":"2001:db8::1","conn":-9}',
        '{"ts_us":1760000000000004,"kind":"exchange","status":401,"path":"/api//x/9/8/7","method":"GET"}',
        '{"ts_us":9000000000000000,"kind":"exchange","status":401}',
        '{"ts_us":1760000000000005,"kind":"exchange","op":"read","status":200,"bytes_out":4,"rseq":-3}',
        '{"kind":"exchange"}',
    ] * 40


def anonymous() -> list[str]:
    """A client that has another name at every request: only its network is always the same."""
    return [
        f'{{"ts_us":{1_760_000_000_000_000 + 250_000 * number},"kind":"exchange","op":"read","status":404,'
        f'"node":"n","channel":"film","client":"{number:x}","ip":"192.0.2.7","conn":{number}}}'
        for number in range(4 * 1500)
    ]


def balanced() -> list[str]:
    """Each server sees too few tries of a client; those of one path succeed then, on other servers."""
    return [
        f'{{"ts_us":{1_760_000_000_000_000 + 1_000_000 * turn + 2000 * client},"kind":"exchange",'
        f'"status":{200 if client % 3 == 0 and turn > 4 else 503},"node":"n{(client * 7 + turn * turn) % 6}",'
        f'"method":"GET","path":"/film{client % 3}","client":"c{client}"}}'
        for client in range(300)
        for turn in range(10)
    ]


@pytest.mark.usefixtures("settings")
@pytest.mark.parametrize("corpus", ["scenarios", pytest.param("chaos", marks=pytest.mark.long), "web", "empty"])
def test_the_engines_agree(spark: SparkSession, tmp_path: Path, corpus: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row by row, and incident by incident, also where clients of one network are in several partitions, and with other
    settings and another time zone; and every table of every step keeps its contract."""
    match corpus:
        case "scenarios":
            lines = [*write_all(5)[0], *write_scenes(5)[0], *hostile(), *anonymous(), *balanced()]
        case "chaos":
            lines = write_chaos(8, servers=10)
        case "web":
            # Many who retry, one that loops, and a challenge that is met: in a format of any web server.
            asked = [
                ("10.0.0.{0}", "/a", 503, 20, 8),
                ("10.1.0.{0}", "/b", 404, 1, 400),
                ("10.2.0.1", "/c", 401, 1, 60),
            ]
            lines = [
                f'{who.format(client)} - - [09/Oct/2025:08:{no // 60:02}:{no % 60:02} +0000] "GET {path} HTTP/1.1" '
                f'{status} 9 "-" "x/1"'
                for who, path, status, clients, times in asked
                for client in range(clients)
                for no in range(times)
            ]
        case _:
            lines = []
    path = write_lines(tmp_path / "log.jsonl", lines)
    files = find_logs([str(path)])
    read_there = read_lines(spark, files)
    rolled = on_spark.roll_up(read_there, now_us=NOW_US)
    # Two partitions, or as many as the session has for more rows, each of which makes all plans.
    monkeypatch.setattr(on_spark, "ROWS", max(1, -(-rolled.size // 2)))
    monkeypatch.setattr(on_spark, "LEAST_ROWS", 1)
    with embedded.connect() as connection:
        read = lines_embedded.read_lines(connection, files, now_us=NOW_US)
        here = incidents(connection)
        assert list(engine.broken(connection)) == []
        connection.register("arrived", rolled.rows.where("tally IS NULL").drop("tally").toArrow())
        connection.execute(f"CREATE TABLE merged AS {merge_sql('arrived')}")
        for one, other in (("rollup", "merged"), ("merged", "rollup")):
            assert connection.execute(f"FROM {one} EXCEPT ALL FROM {other}").fetchall() == []
    with on_spark.reduce(rolled.rows, rolled.size) as there:
        engine.run(there, None, engine.TOGETHER)
        assert found(there) == here
        assert list(engine.broken(there)) == []
    assert rolled.lines.counts == read.counts
    assert bool(here) == (corpus != "empty")
