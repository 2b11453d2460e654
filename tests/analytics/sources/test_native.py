"""Our own records, as JSON and as Parquet, however hostile."""

from __future__ import annotations

import contextlib
import io
import json
import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F

from tests.analytics.support.writer import BASE_US, write_lines
from tricklecast.analytics.inputs import find_logs
from tricklecast.analytics.normalise import answer_kind
from tricklecast.analytics.schema import CORRUPT, log_schema
from tricklecast.analytics.sources import read_logs, recognise
from tricklecast.analytics.sources.native import MATTERS
from tricklecast.trickle.records import SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GOOD: dict[str, Any] = {"v": 1, "ts_us": BASE_US, "kind": "exchange", "op": "read", "method": "GET", "status": 404}
NUMBERS = [name for name, kind in SCHEMA if kind != "string" and name != "v"]


def answers(frame: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    """The kind of answer of each line, and columns."""
    return [tuple(row) for row in frame.select(answer_kind(), *columns).collect()]


def read(spark: SparkSession, path: Path) -> DataFrame:
    """All lines below a path."""
    return read_logs(spark, find_logs([str(path)]))


def test_a_wrong_type_counts_where_it_matters(spark: SparkSession, tmp_path: Path) -> None:
    """Nonsense in a field spoils a line only if the line would say something else without the field."""
    nonsense = ["soon", 1.5, [1], {"a": 1}, 10**30]
    cases = [(name, value) for name in NUMBERS for value in nonsense]
    # A Boolean is no number, and a number is no Boolean; null is nothing.
    cases += [("status", True), ("eos", 1), ("dur_us", False)]
    lines = [json.dumps(GOOD | {"node": name} | {name: value}) for name, value in cases]
    rows = answers(read(spark, write_lines(tmp_path / "a.jsonl", lines)), "node")
    assert len(rows) == len(cases)
    assert {name for answer, name in rows if answer == "unparsable"} == set(MATTERS)
    assert {name for answer, name in rows if answer == "not_found"} == set(NUMBERS) - set(MATTERS)


def test_texts_are_never_of_a_wrong_type(spark: SparkSession, tmp_path: Path) -> None:
    """Where a text should be, anything is taken as text; null and absence are the same."""
    lines = [json.dumps(GOOD | {"channel": value}) for value in (5, True, ["a"], {"b": 1}, None, "")]
    rows = answers(read(spark, write_lines(tmp_path / "a.jsonl", lines)), "channel")
    assert rows == [("not_found", value) for value in ("5", "true", '["a"]', '{"b": 1}', None, "")]


def test_versions(spark: SparkSession, tmp_path: Path) -> None:
    """Fields that are not known are passed over; another version is not guessed at; none is taken for ours."""
    unknown, second = GOOD | {"colour": "red"}, GOOD | {"v": 2}
    bare = {name: value for name, value in GOOD.items() if name != "v"}
    path = write_lines(tmp_path / "a.jsonl", map(json.dumps, (GOOD, unknown, bare, second)))
    assert answers(read(spark, path), CORRUPT) == [*[("not_found", None)] * 3, ("unparsable", "unknown version")]


def test_oddly_made_files(spark: SparkSession, tmp_path: Path) -> None:
    """A byte order mark, Windows' line ends, blank lines, doubled keys and lines of ten megabytes do no harm."""
    good = json.dumps(GOOD).encode()
    twice = good.replace(b'"op"', b'"status":500,"op"')
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + good + b"\r\n\r\n  \r\n" + twice + b"\r\n")
    big = json.dumps(GOOD | {"channel": "x" * 10_000_000}).encode()
    write_lines(tmp_path / "b.jsonl", [big, b"y" * 10_000_000, b"\0" * 1000, good[:-4] + b"\xff\xfe}", good])
    assert Counter(answers(read(spark, tmp_path))) == {("not_found",): 4, ("unparsable",): 3}


def test_the_last_line_may_be_unfinished(spark: SparkSession, tmp_path: Path) -> None:
    """What a server is still writing is no broken line; the same bytes elsewhere are."""
    good = json.dumps(GOOD).encode()
    (tmp_path / "a.jsonl").write_bytes(good + b"\n" + good[:40])
    (tmp_path / "b.jsonl").write_bytes(good + b"\n" + good)
    (tmp_path / "c.jsonl").write_bytes(good[:30] + b"\n" + good[:-2] + b"\xff")
    assert Counter(answers(read(spark, tmp_path))) == {("not_found",): 3, ("unparsable",): 1}


@pytest.mark.parametrize("seed", [1])
def test_mutations_of_good_lines(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """Lines with bytes changed, lost and added are each one row; the others are as they were."""
    rng = random.Random(seed)
    good = json.dumps(GOOD | {"channel": "film", "bytes_out": 0, "eos": False}).encode()
    lines = []
    for _ in range(2000):
        line = bytearray(good)
        for _ in range(rng.randrange(1, 6)):
            at = rng.randrange(len(line))
            match rng.randrange(3):
                case 0:
                    line[at] = rng.choice([c for c in range(256) if c not in b"\r\n"])
                case 1:
                    del line[at]
                case _:
                    line.insert(at, rng.choice(b'"{}[]:,\\0-e\xff'))
        lines += [bytes(line), good]
    counts = Counter(answer for (answer,) in answers(read(spark, write_lines(tmp_path / "a.jsonl", lines))))
    assert counts.total() == len(lines)
    assert counts["not_found"] >= 2000
    assert counts["unparsable"] > 1000


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
RECORDS = st.dictionaries(st.sampled_from([name for name, _ in SCHEMA]) | st.text(), VALUES, max_size=8)
GARBAGE = st.one_of(
    RECORDS.map(lambda record: json.dumps(record).encode()), st.binary(), VALUES.map(repr).map(str.encode)
)


@settings(max_examples=2, suppress_health_check=list(HealthCheck))
@given(st.lists(GARBAGE, min_size=100, max_size=150))
def test_garbage(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, garbage: list[bytes]) -> None:
    """Whatever the lines are: those between them are unharmed, and nothing is raised."""
    good = json.dumps(GOOD | {"node": "good"}).encode()
    lines = [part for line in garbage for part in (line.replace(b"\n", b"").replace(b"\r", b""), good)]
    path = write_lines(tmp_path_factory.mktemp("garbage") / "a.jsonl", lines)
    rows = answers(read(spark, path).where(F.col("node") == "good"))
    assert rows == [("not_found",)] * len(garbage)


# --- Parquet ----------------------------------------------------------------------------------------------------------

OF = {"int": pa.int32(), "long": pa.int64(), "string": pa.string(), "boolean": pa.bool_()}


def write_parquet(path: Path, columns: dict[str, Any]) -> Path:
    """Writes columns as they are."""
    pq.write_table(pa.table(columns), path)
    return path


def as_columns(**changed: Any) -> dict[str, Any]:
    """One good line in columns of the right types, some of them changed."""
    types = dict(SCHEMA)
    return {name: pa.array([value], OF[types[name]]) for name, value in GOOD.items()} | changed


def test_parquet_beside_json(spark: SparkSession, tmp_path: Path) -> None:
    """Parquet and JSON in one call; columns that are missing are null, and others are passed over."""
    write_parquet(tmp_path / "a.parquet", as_columns(colour=pa.array(["red"])))
    write_parquet(tmp_path / "b.parquet", as_columns(v=pa.array([2], pa.int32())))
    write_lines(tmp_path / "c.jsonl", [json.dumps(GOOD)])
    frame = read(spark, tmp_path)
    assert frame.columns == log_schema().names
    assert Counter(answers(frame, "ts_us", "client")) == {
        ("not_found", BASE_US, None): 2,
        ("unparsable", BASE_US, None): 1,
    }


OTHER_TYPES: dict[str, tuple[dict[str, Any], str]] = {
    "narrow": ({"status": pa.array([404], pa.int16()), "dur_us": pa.array([5], pa.int32())}, "not_found"),
    "wide, a number as text, nonsense that does not matter": (
        {"status": pa.array([404], pa.int64()), "channel": pa.array([5]), "conn": pa.array(["x"])},
        "not_found",
    ),
    "text, bytes": (
        {
            "status": pa.array(["404"]),
            "ts_us": pa.array([str(BASE_US)]),
            "channel": pa.array([b"film"], pa.binary()),
            "eos": pa.array(["true"]),
        },
        "not_found",
    ),
    "double, time, object as text": (
        {
            "status": pa.array([404.0]),
            "ts_us": pa.array([BASE_US], pa.timestamp("us", "UTC")),
            "channel": pa.array([{"a": 1}]),
        },
        "not_found",
    ),
    "nonsense": ({"status": pa.array(["OK"])}, "unparsable"),
    "list": ({"status": pa.array([[404]])}, "unparsable"),
}


def test_parquet_of_other_types(spark: SparkSession, tmp_path: Path) -> None:
    """Files whose columns have other types are read, too, each in its own way; what does not fit is counted."""
    for name, (changed, _) in OTHER_TYPES.items():
        write_parquet(tmp_path / f"{name}.parquet", as_columns(**changed, node=pa.array([name])))
    rows = answers(read(spark, tmp_path), "node", "ts_us")
    assert {node: answer for answer, node, _ in rows} == {name: answer for name, (_, answer) in OTHER_TYPES.items()}
    assert {ts_us for _, _, ts_us in rows} == {BASE_US}


def test_cut_parquet(spark: SparkSession, tmp_path: Path) -> None:
    """Without its footer nothing of a file can be read: it is named, and the others are read."""
    whole = write_parquet(tmp_path / "a.parquet", as_columns())
    (tmp_path / "cut.parquet").write_bytes(whole.read_bytes()[:-20])
    (tmp_path / "short.parquet").write_bytes(b"PAR1")
    (tmp_path / "spoilt.parquet").write_bytes(b"PAR1" + b"\xff" * 100 + (80).to_bytes(4, "little") + b"PAR1")
    files = find_logs([str(tmp_path)])
    cut = recognise(files).unreadable
    assert [Path(name).name for name in cut] == ["cut.parquet", "short.parquet", "spoilt.parquet"]
    assert answers(read_logs(spark, files)) == [("not_found",)]
    whole.unlink()
    assert answers(read(spark, tmp_path)) == []


def test_only_needed_columns_are_read(spark: SparkSession, tmp_path: Path) -> None:
    """What is asked of the lines reaches the scan: other columns of Parquet are left on the disk."""
    write_parquet(tmp_path / "a.parquet", as_columns())
    needed = read(spark, tmp_path).where(F.col(CORRUPT).isNull()).groupBy("channel").agg(F.sum("bytes_out"))
    plan = _plan(needed)
    (schema,) = {line.partition("ReadSchema: ")[2] for line in plan.splitlines() if "ReadSchema" in line}
    assert schema == "struct<v:int,channel:string,bytes_out:bigint>"


def _plan(frame: DataFrame) -> str:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        frame.explain()
    return output.getvalue()
