"""Files from anywhere are one frame of lines: their time, their place and their compression do not matter."""

from __future__ import annotations

import bz2
import gzip
import json
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.analytics.sources.lines import CADDY, OWN, TS_US, as_line
from tests.analytics.support.writer import write_lines
from tricklecast.analytics.durations import HOUR_US
from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.inputs import Window, find_logs
from tricklecast.analytics.sources import Reading, read_logs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def at(hours: int, **fields: Any) -> str:
    """A line of so many hours later."""
    return json.dumps(OWN | {"ts_us": TS_US + hours * HOUR_US} | fields)


def test_window(spark: SparkSession, tmp_path: Path) -> None:
    """Only lines that arrived in the window are read, its first moment included; broken lines are kept."""
    path = write_lines(tmp_path / "a.jsonl", [*(at(hour) for hour in range(5)), "broken", '{"kind":"exchange"}'])
    window = Window(TS_US + HOUR_US, TS_US + 3 * HOUR_US)
    rows = read_logs(spark, find_logs([str(path)], window), Reading(window=window)).collect()
    assert [(row["ts_us"] or TS_US) - TS_US for row in rows] == [HOUR_US, 2 * HOUR_US, 0, 0]


def test_uris_are_searched_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    """A URI of a folder is searched for logs, its hours pruned; one of a file or a glob is taken as it is."""
    for hour in (8, 9, 10):
        folder = tmp_path / f"dt=2025-10-09/hr={hour:02}"
        folder.mkdir(parents=True)
        write_lines(folder / "a.jsonl", [at(hour - 8, node=str(hour))])
    write_lines(tmp_path / "caddy.log", [as_line(CADDY)])
    write_lines(tmp_path / "notes.txt", ["no log"])
    uri = tmp_path.as_uri()

    def nodes(argument: str, window: Window) -> list[str]:
        frame = read_logs(spark, find_logs([argument], window), Reading(window=window))
        return sorted(str(row["node"]) for row in frame.select("node").collect())

    everything = Window()
    assert nodes(uri, everything) == ["10", "8", "9", "None"]
    assert nodes(f"{uri}/dt=*/hr=*/*.jsonl", Window(TS_US + HOUR_US, TS_US + HOUR_US + 1)) == ["9"]
    assert nodes(f"{uri}/caddy.log", everything) == ["None"]
    for nothing in ("missing", "*.jsonl"):
        with pytest.raises(BadInput, match="no such log"):
            nodes(f"{uri}/{nothing}", everything)
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match=r"no logs|no such log"):
        nodes(f"{uri}/empty", everything)


def test_compressed_files(spark: SparkSession, tmp_path: Path) -> None:
    """Compressed files are read under any name that Spark would not understand; a cut one as far as it goes."""
    line = (at(0) + "\n").encode()
    (tmp_path / "a:b.jsonl.gz").write_bytes(gzip.compress(line))
    (tmp_path / "_c [1].jsonl.bz2").write_bytes(bz2.compress(line * 2))
    cut = gzip.compress(b"".join((at(0, conn=number) + "\n").encode() for number in range(20_000)))
    (tmp_path / "d.jsonl.gz").write_bytes(cut[: len(cut) // 2])
    wanted = 4
    if shutil.which("zstd") is not None:
        subprocess.run(["zstd", "-q", "-", "-o", str(tmp_path / "e\n.jsonl.zst")], input=line * 4, check=True)
        wanted += 4
    files = find_logs([str(tmp_path)])
    assert [Path(name).name for name in files.damaged] == ["d.jsonl.gz"]
    rows = read_logs(spark, files).where("_corrupt_record IS NULL").collect()
    whole = [row for row in rows if row["conn"] is None]
    assert len(whole) == wanted - 1
    assert len(rows) - len(whole) > 1000


def test_client_key_of_our_own_lines(spark: SparkSession, tmp_path: Path) -> None:
    """Another key can be asked for in our own logs, too: a field that they have."""
    lines = [at(0, client="a", ip="192.0.2.7", ua="x/1"), at(0, client="b", ip="192.0.2.7"), at(0, conn=5)]
    path = write_lines(tmp_path / "a.jsonl", lines)

    def clients(key: str | None) -> list[str | None]:
        return [row["client"] for row in read_logs(spark, find_logs([str(path)]), Reading(client_key=key)).collect()]

    assert clients(None) == ["a", "b", None]
    assert clients("ip,conn") == ["192.0.2.7", "192.0.2.7", "5"]
    with_ua, without, nobody = clients("ip+ua")
    assert with_ua is not None
    assert with_ua.startswith("192.0.2.7#")
    assert (without, nobody) == ("192.0.2.7", None)


def test_nothing_at_all(spark: SparkSession, tmp_path: Path) -> None:
    """An empty file has no lines."""
    (tmp_path / "a.jsonl").touch()
    assert read_logs(spark, find_logs([str(tmp_path)])).collect() == []
