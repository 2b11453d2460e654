"""The scan: kinds of answer, the roll-up and its merge, lines that are hostile or have a wrong clock."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pytest

from tests.analytics.support.chaos import write_chaos
from tests.analytics.support.jsonl import read_jsonl
from tests.analytics.support.writer import write_lines
from tricklecast.analytics.scan import embedded
from tricklecast.analytics.scan.normalise import normalise_sql
from tricklecast.analytics.scan.rollup import KEY, MEASURES, merge_sql, roll_up_sql

NOW = 1_760_000_400_000_000


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    """A database of its own."""
    with embedded.connect() as opened:
        yield opened


def _log(folder: Path, *lines: dict[str, Any] | bytes) -> list[Path]:
    path = folder / "log.jsonl"
    path.write_bytes(b"".join((one if isinstance(one, bytes) else orjson.dumps(one)) + b"\n" for one in lines))
    return [path]


def _line(**fields: Any) -> dict[str, Any]:
    known = {"ts_us": NOW, "node": "n", "kind": "exchange", "op": "read", "method": "GET", "client": "c"}
    return known | {"channel": "film", "status": 200} | fields


def _answers(connection: duckdb.DuckDBPyConnection) -> dict[str, int]:
    return dict(connection.execute("SELECT answer, sum(n)::INT FROM rollup GROUP BY answer").fetchall())


@pytest.mark.parametrize(
    ("fields", "answer"),
    [
        ({"bytes_out": 9}, "served"),
        ({"bytes_out": 0}, "zero_byte"),
        ({"bytes_out": 0, "eos": True}, "ended"),
        ({"bytes_out": 0, "reason": "client_gone"}, "ok"),
        ({"status": None, "reason": "client_gone", "dur_us": 10_000}, "abandoned"),
        ({"status": None, "reason": "client_gone", "dur_us": 2_000_000}, "ok"),
        ({"status": 503}, "overload"),
        ({"status": 500}, "server_error"),
        ({"status": 404}, "not_found"),
        ({"status": 404, "op": "api"}, "ok"),
        ({"status": 470}, "seq_missing"),
        ({"status": 401}, "rejected"),
        ({"status": 401, "op": None, "channel": None}, "web"),
        ({"op": "publish", "method": "POST"}, "post"),
        ({"method": "HEAD"}, "ok"),
        ({"kind": "event", "event": "drain"}, "event"),
        ({"kind": "words"}, "unparsable"),
        ({"ts_us": -5}, "unparsable"),
    ],
)
def test_the_kind_of_answer(
    connection: duckdb.DuckDBPyConnection, tmp_path: Path, fields: dict[str, Any], answer: str
) -> None:
    """Each line has one kind."""
    read_jsonl(connection, _log(tmp_path, _line(**fields)))
    embedded.roll_up(connection)
    assert _answers(connection) == {answer: 1}


def test_lines_that_are_no_records_are_counted(connection: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    """Broken JSON, wrong types and impossible numbers are no errors."""
    broken = [b"{", b"words", b'{"ts_us":"now","kind":"exchange"}', b"[]"]
    strange = _line(status=404, bytes_out=1 << 60, seq=-7, dur_us=-1, conn=-1, client="x" * 5000)
    read_jsonl(connection, _log(tmp_path, *broken, strange))
    embedded.roll_up(connection)
    assert _answers(connection) == {"unparsable": len(broken), "not_found": 1}
    row = connection.execute(
        "SELECT bytes_out, seq_lo, dur_us, len(client) FROM rollup WHERE answer = 'not_found'"
    ).fetchall()
    assert row == [(None, None, None, 256)]


def test_a_line_from_the_future_is_counted_and_used_for_nothing(
    connection: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    """A clock that is years ahead moves no bucket and no border of the log."""
    read_jsonl(connection, _log(tmp_path, _line(status=404), _line(status=404, ts_us=NOW * 2)))
    embedded.roll_up(connection, latest_us=NOW + 1)
    embedded.reduce(connection)
    assert _answers(connection) == {"not_found": 1, "future": 1}
    assert connection.execute("SELECT max(last_us), max(bucket_us) FROM rollup").fetchall() == [(NOW, NOW)]


def test_merged_parts_are_the_whole(connection: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    """Rolling up two halves and merging them gives the roll-up of all lines."""
    read_jsonl(connection, [write_lines(tmp_path / "log.jsonl", write_chaos(3, servers=6))])
    embedded.roll_up(connection)
    connection.execute("CREATE TABLE whole AS FROM rollup")
    connection.execute("CREATE TABLE lines AS SELECT *, row_number() OVER () % 2 AS half FROM line")
    connection.execute("CREATE TABLE parts AS FROM rollup LIMIT 0")
    for half in (0, 1):
        connection.execute(f"CREATE OR REPLACE VIEW part AS SELECT * FROM lines WHERE half = {half}")
        embedded.roll_up(connection, "part")
        connection.execute("INSERT INTO parts FROM rollup")
    merged = connection.execute(f"SELECT * FROM ({merge_sql('parts')}) EXCEPT FROM whole").fetchall()
    assert merged == []
    counts = connection.execute("SELECT (SELECT sum(n) FROM whole), (SELECT sum(n) FROM parts)").fetchall()
    assert counts[0][0] == counts[0][1]


def test_no_window_and_no_sort_over_lines() -> None:
    """What is done to every line is one pass: no window, no sort, no join."""
    # What comes after "rolled" is done to groups, of which there are few.
    text = roll_up_sql(f"({normalise_sql()}) rows_").upper().partition("PATHS AS (")[0]
    assert [word for word in (" OVER ", "ORDER BY", " JOIN ", "DISTINCT") if word in text] == []
    assert text.count("GROUP BY") == 1


def test_columns_of_the_rollup(connection: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    """The table of measures is what the roll-up has, in that order."""
    read_jsonl(connection, _log(tmp_path, _line()))
    embedded.roll_up(connection)
    told = [row[0] for row in connection.execute("DESCRIBE rollup").fetchall()]
    assert told == [*KEY, *(one.name for one in MEASURES)]
