"""The steps of the rules as a chain: the contracts of their tables, and joins that do not look at every pair."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import duckdb
import orjson
import pytest

from tests.analytics.rules import test_web as web
from tests.analytics.rules.test_incidents import event, herd, viewers
from tests.analytics.support.jsonl import read_jsonl
from tests.analytics.support.rules import rules
from tricklecast.analytics.rules import engine
from tricklecast.analytics.rules.incidents import Incident, incidents
from tricklecast.analytics.rules.params import Params
from tricklecast.analytics.scan import embedded


@pytest.fixture
def prepared() -> Iterator[duckdb.DuckDBPyConnection]:
    """What the first step reads, of one line."""
    with embedded.connect() as connection:
        connection.execute("CREATE TEMP TABLE line AS SELECT 1::BIGINT AS ts_us, 'n' AS node, 'exchange' AS kind")
        embedded.roll_up(connection)
        embedded.reduce(connection)
        yield connection


def test_a_broken_contract_is_told(prepared: duckdb.DuckDBPyConnection) -> None:
    """Rows that share a key, and nulls; every table that a step makes has a contract."""
    inputs = {row[0] for row in prepared.execute("SHOW TABLES").fetchall()}
    prepared.execute("SET threads = 3")
    engine.run(prepared)
    assert prepared.execute("SELECT current_setting('threads')").fetchall() == [(3,)]
    made = {row[0] for row in prepared.execute("SHOW TABLES").fetchall()} - inputs
    assert made == {table for tables in engine.CONTRACTS.values() for table in tables}
    assert tuple(engine.CONTRACTS) == engine.STEPS
    assert list(engine.broken(prepared)) == []
    prepared.execute(
        "CREATE OR REPLACE TEMP TABLE cures AS SELECT 'a' AS client, 'b' AS channel, 1 AS bucket_us, n "
        "FROM (VALUES (1), (NULL)) t(n)"
    )
    assert list(engine.broken(prepared)) == [
        "cures: 2 rows have 1 keys (client, channel, bucket_us)",
        "cures: n is null",
    ]


LOOP: Final = [*web.loop(100, 0.1, 404, "/trickle/film/7"), event(9, "channel_end", "film", "edge-1")]
CROWDS: Final = [
    *web.over(3, web.fleet(60, 5, 0.5, 429)),
    *web.skewed(web.loop(300, 0.2, 500, "/portal"), 90),
    # A server that says nothing before a herd comes.
    *(one for one in viewers(3, 120) if not 60 <= (one["ts_us"] - web.BEGIN) / 1e6 < 64),
    *herd(64.1, 40, 4, 0.9),
]


def read(connection: duckdb.DuckDBPyConnection, folder: Path, lines: list[dict[str, Any]]) -> list[Incident]:
    """The incidents in some lines, as the report finds them."""
    (folder / "log.jsonl").write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    read_jsonl(connection, [folder / "log.jsonl"])
    return incidents(connection)


def test_rules_that_are_planned_once_find_the_same(tmp_path: Path) -> None:
    """In one log after the other, whatever was in the one before."""
    with embedded.connect(0) as connection:
        loops, crowds = read(connection, tmp_path, LOOP), read(connection, tmp_path, CROWDS)
    assert (len(loops), len(crowds)) == (1, 3)
    assert [rules().incidents(lines) for lines in (CROWDS, LOOP, [], CROWDS)] == [crowds, loops, [], crowds]


def test_tables_that_have_no_rows_without_others(tmp_path: Path) -> None:
    """A step that is left out for want of rows would find nothing. Its empty table has the same columns."""
    made: dict[str, duckdb.Statement] = {}
    for step, tables in engine.CONTRACTS.items():
        made |= dict(zip(tables, duckdb.extract_statements(engine.step_sql(step)), strict=True))
    empty = duckdb.extract_statements(engine.step_sql("tables"))
    with embedded.connect(0) as connection:
        read(connection, tmp_path, LOOP + CROWDS)
        for table, statement in zip(made, empty, strict=True):
            columns = connection.execute(f"DESCRIBE {table}").fetchall()
            connection.execute("BEGIN")
            connection.execute(statement)
            assert connection.execute(f"DESCRIBE {table}").fetchall() == columns, table
            assert connection.execute(f"SELECT count(*) FROM {table}").fetchall() == [(0,)]
            connection.execute("ROLLBACK")
        for table, needs in engine.NOTHING_WITHOUT.items():
            count = f"SELECT count(*) > 0 FROM {table}"
            assert connection.execute(count).fetchall() == [(True,)], table
            connection.execute("BEGIN")
            for need in needs:
                connection.execute(f"DELETE FROM {need}")
            order = list(made)
            behind = 1 + max((order.index(need) for need in needs if need in made), default=order.index(table) - 1)
            for each in order[behind : order.index(table) + 1]:
                connection.execute(made[each])
            assert connection.execute(count).fetchall() == [(False,)], table
            connection.execute("ROLLBACK")


def operators(plan: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """All operators of a plan."""
    for one in plan:
        yield one
        yield from operators(one["children"])


def test_no_join_looks_at_every_pair(prepared: duckdb.DuckDBPyConnection) -> None:
    """What is joined by a time between two others is joined by the minute, too, unless it is one case's own."""
    prepared.execute(engine.prelude(Params()))
    joins = 0
    for statement in (one for step in engine.STEPS for one in prepared.extract_statements(engine.step_sql(step))):
        (_, text), *_ = prepared.execute(f"EXPLAIN (FORMAT json) {statement.query}").fetchall()
        for join in operators(json.loads(text)):
            told = join["extra_info"].get("Conditions", ())
            conditions = [told] if isinstance(told, str) else told
            between = [one for one in conditions if "_us" in one and (">=" in one or "<=" in one)]
            if join["name"] == "HASH_JOIN" and len(between) > 1:
                assert any("// 60000000" in one or one == "id = id" for one in conditions), conditions
                joins += 1
        prepared.execute(statement)
    assert joins > 5


def test_a_crowd_has_a_map_of_a_bounded_size(prepared: duckdb.DuckDBPyConnection) -> None:
    """Its busiest twenty clients, in 61 steps of time at most; it has five samples of its lines at most."""
    prepared.execute("""CREATE OR REPLACE TEMP TABLE line AS
        SELECT 1760000400000000 + turn * 1000000 + client * 9000 AS ts_us, concat('n', turn // 20) AS node,
            'exchange' AS kind, 'GET' AS method, '/a' AS path, 503 AS status, concat('c', client) AS client
        FROM range(30) c(client), range(200) t(turn) WHERE client > 4 OR turn % 2 = 0""")
    (one,) = incidents(prepared)
    assert (one.n, len(one.clients), len(one.nodes)) == (25 * 200 + 5 * 100, 30, 10)
    assert 0 < len(one.samples) <= 5
    (busiest,) = (row[0] for row in prepared.execute("SELECT busiest FROM fleets WHERE len(nodes) = 10").fetchall())
    steps = Counter(cell["client"] for cell in busiest)
    assert len(steps) == 20
    assert 50 < max(steps.values()) <= 61
    assert sum(cell["n"] for cell in busiest) == 20 * 200
    assert not steps.keys() & {f"c{number}" for number in range(5)}
