"""Both engines give the same roll-up and the same incidents."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.analytics.support.chaos import write_chaos
from tests.analytics.support.scenarios import write_all
from tests.analytics.support.scenes import write_scenes
from tests.analytics.support.writer import write_lines
from tricklecast.analytics.rules.incidents import incidents, spark_incidents
from tricklecast.analytics.scan import embedded
from tricklecast.analytics.scan import spark as on_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("corpus", ["scenarios", "chaos", "hostile", "empty"])
def test_the_engines_agree(spark: SparkSession, tmp_path: Path, corpus: str) -> None:
    """Row by row, and incident by incident."""
    match corpus:
        case "scenarios":
            lines = [*write_all(5)[0], *write_scenes(5)[0]]
        case "chaos":
            lines = write_chaos(8, servers=10)
        case "hostile":
            lines = [
                '{"ts_us":1760000000000001,"kind":"exchange","status":404,"client":"\\u0000\\ud83d\\ude00","channel":"a"}',
                '{"ts_us":1760000000000002,"kind":"exchange","status":503,"ip":"::ffff:192.0.2.7"}',
                '{"ts_us":1760000000000003,"kind":"exchange","status":503,"ip":"2001:db8::1","conn":-9}',
                '{"ts_us":1760000000000004,"kind":"exchange","status":401,"path":"/api//x/9/8/7","method":"GET"}',
                '{"ts_us":9000000000000000,"kind":"exchange","status":401}',
                '{"ts_us":1760000000000005,"kind":"exchange","op":"read","status":200,"bytes_out":4,"rseq":-3}',
                '{"kind":"exchange"}',
            ] * 40
        case _:
            lines = []
    path = write_lines(tmp_path / "log.jsonl", lines)
    rolled = on_spark.roll_up(on_spark.read_jsonl(spark, [str(path)]), str(tmp_path / "rollup"))
    with embedded.connect() as connection:
        embedded.read_jsonl(connection, [path])
        here = incidents(connection)
        connection.register("arrived", rolled.toArrow())
        for one, other in (("rollup", "arrived"), ("arrived", "rollup")):
            assert connection.execute(f"FROM {one} EXCEPT ALL FROM {other}").fetchall() == []
    assert spark_incidents(on_spark.read_jsonl(spark, [str(path)]), str(tmp_path / "again")) == here
    assert bool(here) == (corpus != "empty")
