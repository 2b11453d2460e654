"""Every line becomes one row of the right kind, however hostile it is."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.analytics.support.writer import BASE_US, write_lines
from tricklecast.analytics.answers import Answer, from_code
from tricklecast.analytics.normalise import MAX_TEXT, normalise
from tricklecast.analytics.schema import log_schema
from tricklecast.analytics.sources import read_lines
from tricklecast.trickle.records import SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

EXCHANGE = {"ts_us": BASE_US, "kind": "exchange", "op": "read", "method": "GET", "client": "c", "channel": "film"}

KINDS: dict[str, tuple[dict[str, Any], Answer]] = {
    "429": ({"status": 429}, Answer.OVERLOAD),
    "503": ({"status": 503}, Answer.OVERLOAD),
    "503 to a publisher": ({"status": 503, "op": "publish", "method": "POST"}, Answer.OVERLOAD),
    "500": ({"status": 500}, Answer.SERVER_ERROR),
    "502": ({"status": 502}, Answer.SERVER_ERROR),
    "404": ({"status": 404}, Answer.NOT_FOUND),
    "404 with Closed": ({"status": 404, "eos": True}, Answer.NOT_FOUND),
    "404 of the control plane": ({"status": 404, "op": "api"}, Answer.OK),
    "470": ({"status": 470}, Answer.SEQ_MISSING),
    "ended": ({"status": 200, "bytes_out": 0, "eos": True}, Answer.ENDED),
    "ended, no bytes_out": ({"status": 200, "eos": True}, Answer.ENDED),
    "empty segment": ({"status": 200, "bytes_out": 0, "eos": False}, Answer.ZERO_BYTE),
    "empty segment, reason": ({"status": 200, "bytes_out": 0, "reason": "empty"}, Answer.ZERO_BYTE),
    "gave up": ({"bytes_out": 0, "reason": "client_gone", "dur_us": 1_999_999}, Answer.ABANDONED),
    "gave up, nobody says when": ({"reason": "client_gone"}, Answer.ABANDONED),
    "gave up waiting": ({"bytes_out": 0, "reason": "client_gone", "dur_us": 2_000_000}, Answer.OK),
    "gave up a HEAD": ({"reason": "client_gone", "method": "HEAD", "dur_us": 50}, Answer.OK),
    "gave up a preconnect": ({"reason": "client_gone", "op": "publish", "method": "POST", "dur_us": 50}, Answer.OK),
    "gave up after the first bytes": ({"bytes_out": 5, "reason": "client_gone", "dur_us": 50}, Answer.OK),
    "cut off": ({"bytes_out": 0, "reason": "evicted", "dur_us": 50}, Answer.OK),
    "gave up with a status": ({"status": 200, "bytes_out": 0, "reason": "client_gone"}, Answer.OK),
    "HEAD": ({"status": 200, "bytes_out": 0, "method": "HEAD"}, Answer.OK),
    "segment": ({"status": 200, "bytes_out": 5}, Answer.SERVED),
    "segment, then gone": ({"status": 200, "bytes_out": 5, "reason": "client_gone"}, Answer.SERVED),
    "head": ({"status": 200, "bytes_out": 1, "op": "next"}, Answer.OK),
    "post": ({"status": 200, "op": "publish", "method": "POST"}, Answer.POST),
    "post again": ({"status": 409, "op": "publish", "method": "POST"}, Answer.POST),
    "delete": ({"status": 200, "op": "delete", "method": "DELETE"}, Answer.OK),
    "bad request": ({"status": 400}, Answer.REJECTED),
    "bad request for nothing": ({"status": 400, "channel": None}, Answer.OK),
    "no token": ({"status": 401}, Answer.REJECTED),
    "not allowed to publish": ({"status": 403, "op": "publish", "method": "POST"}, Answer.REJECTED),
    "method not allowed": ({"status": 405, "method": "PUT"}, Answer.REJECTED),
    "no token for the control plane": ({"status": 401, "op": "api"}, Answer.OK),
    "closed by its client, as nginx says": ({"status": 499}, Answer.OK),
    "event": ({"kind": "event", "event": "channel_end"}, Answer.EVENT),
}

BROKEN: dict[str, bytes] = {
    "cut": b'{"v":1,"ts_us":1760000000000000,"ki',
    "no object": b"123",
    "a text": b'"exchange"',
    "null": b"null",
    "empty object": b"{}",
    "no time": b'{"kind":"exchange"}',
    "time as text": b'{"ts_us":"yesterday","kind":"exchange"}',
    "time as a fraction": b'{"ts_us":1.5,"kind":"exchange"}',
    "time beyond 64 bits": b'{"ts_us":99999999999999999999,"kind":"exchange"}',
    "time beyond reason": b'{"ts_us":9000000000000000000,"kind":"exchange"}',
    "time before time": b'{"ts_us":-5,"kind":"exchange"}',
    "no kind": b'{"ts_us":1760000000000000}',
    "unknown kind": b'{"ts_us":1760000000000000,"kind":"sale"}',
    "status as text": b'{"ts_us":1760000000000000,"kind":"exchange","status":"ok"}',
    "status as a list": b'{"ts_us":1760000000000000,"kind":"exchange","status":[1]}',
    "invalid UTF-8": b'{"ts_us":1760000000000000,"kind":"exchange","client":"\xff\xfe"}',
    "NUL bytes": b"\0\0\0\0",
    "deep": b"[" * 5000,
    "a megabyte of nothing": b"x" * 1_000_000,
    "two in one line, cut": b'{"ts_us":1760000000000000,{"ts_us":1760000000000000,"kind":"exchange"}',
    "HTML": b"<html><script>alert(1)</script></html>",
}


def rows_of(spark: SparkSession, path: Path, *, damaged: bool = False) -> list[Row]:
    """The normalised rows of one file."""
    rows = normalise(read_lines(spark, [str(path)], damaged=damaged))
    return rows.selectExpr("*", f"{from_code('code')} AS answer").collect()


@pytest.fixture(scope="module")
def kinds(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The kind of answer that each line of KINDS was given."""
    lines = [json.dumps(EXCHANGE | fields | {"node": name}) for name, (fields, _) in KINDS.items()]
    path = write_lines(tmp_path_factory.mktemp("kinds") / "kinds.jsonl", lines)
    return {row["node"]: row["answer"] for row in rows_of(spark, path)}


@pytest.mark.parametrize("name", KINDS)
def test_kind_of_answer(name: str, kinds: dict[str, str]) -> None:
    """A line has the kind of answer that the protocol gives it."""
    assert kinds[name] == KINDS[name][1]


def test_schema_is_that_of_the_records() -> None:
    """Spark reads exactly the fields that the server writes, and a column for broken lines."""
    assert log_schema().names == [name for name, _ in SCHEMA] + ["_corrupt_record"]


def test_broken_lines_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    """Every broken line is one unparsable row without a key; blank lines are none; good neighbours survive."""
    good = json.dumps(EXCHANGE | {"status": 404}).encode()
    lines = [line for broken in BROKEN.values() for line in (broken, good, b"")]
    rows = rows_of(spark, write_lines(tmp_path / "broken.jsonl", lines))
    assert Counter(row["answer"] for row in rows) == {"unparsable": len(BROKEN), "not_found": len(BROKEN)}
    keys = {(row["client"], row["channel"], row["ts_us"]) for row in rows if row["answer"] == "unparsable"}
    assert keys == {(None, None, None)}


def test_values_out_of_range_are_dropped(spark: SparkSession, tmp_path: Path) -> None:
    """Numbers that would overflow a sum, or that are below nothing, are dropped; texts are cut."""
    huge = {"bytes_in": 2**62, "bytes_out": 2**63 - 1, "dur_us": 2**62, "rseq": 2**62, "next_seq": -1, "seq": -1}
    line = json.dumps(EXCHANGE | huge | {"status": 200, "client": "x" * 1_000_000, "channel": "y" * 5000})
    (row,) = rows_of(spark, write_lines(tmp_path / "huge.jsonl", [line]))
    assert [row[name] for name in ("bytes_in", "bytes_out", "dur_us", "seq", "head")] == [None] * 5
    assert (len(row["client"]), len(row["channel"])) == (MAX_TEXT, MAX_TEXT)


def test_seq_as_resolved_else_as_asked(spark: SparkSession, tmp_path: Path) -> None:
    """The seq is the resolved one, else the concrete one that was asked for, else unknown."""
    asked: list[dict[str, Any]] = [{"seq": -1, "rseq": 7}, {"seq": 9}, {"seq": -2}, {}]
    path = write_lines(tmp_path / "seq.jsonl", [json.dumps(EXCHANGE | fields) for fields in asked])
    assert [row["seq"] for row in rows_of(spark, path)] == [7, 9, None, None]


def test_cut_gzip_is_read_as_far_as_it_goes(spark: SparkSession, tmp_path: Path) -> None:
    """The whole lines of a cut gzip are used."""
    whole = gzip.compress((json.dumps(EXCHANGE | {"status": 404}) + "\n").encode() * 100_000)
    path = tmp_path / "cut.jsonl.gz"
    path.write_bytes(whole[: len(whole) // 2])
    kinds = Counter(row["answer"] for row in rows_of(spark, path, damaged=True))
    assert kinds["not_found"] > 1000
    assert kinds["unparsable"] <= 1
