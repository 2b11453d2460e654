"""The report's episodes and totals, found a second time: by DuckDB, from the written rules, without any of our Spark.

What is shared with the product are the numbers (``params``), the names of answers and events, and how wide buckets are.
Lines are read as text and taken apart by DuckDB's JSON functions; sets of bits use the same hash as Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.analytics.oracle.islands import islands
from tests.analytics.oracle.murmur import bit_of_number, bit_of_text
from tests.analytics.oracle.storms import storms
from tricklecast.analytics.params import StormParams

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

FIELDS = {
    "ts_us": "BIGINT",
    "status": "INTEGER",
    "seq": "BIGINT",
    "rseq": "BIGINT",
    "bytes_out": "BIGINT",
    "v": "INTEGER",
    "next_seq": "BIGINT",
    "bytes_in": "BIGINT",
    "dur_us": "BIGINT",
    "wait_us": "BIGINT",
    "conn": "BIGINT",
    "retry_after_ms": "BIGINT",
    "guard_ms": "BIGINT",
    "eos": "BOOLEAN",
}
TEXTS = ("node", "kind", "event", "op", "method", "channel", "reason", "client", "ip", "release")
MATTER = ("ts_us", "status", "seq", "rseq", "bytes_out", "eos")
"""Fields whose wrong type spoils a line."""


@dataclass(frozen=True, slots=True)
class Told:
    """What the oracle says about a log.

    Attributes:
        episodes: each as a plain object, with the fields of :data:`EPISODE`, in no particular order.
        totals: requests by kind of answer, sums, lines, and what could not be read.
    """

    episodes: list[dict[str, Any]]
    totals: dict[str, Any]


def ask(logs: Iterable[Path]) -> Told:
    """Reads JSON Lines files and says which storms are in them, and how much of what there was."""
    import duckdb

    with duckdb.connect() as connection:
        for statement in _lines([str(log) for log in logs]):
            connection.execute(statement)
        _hash(connection, "conn", bit_of_number)
        _hash(connection, "node", bit_of_text)
        for statement in (_exchanges(), *islands(), *storms()):
            connection.execute(statement)
        return Told([_episode(row) for row in _rows(connection, "FROM episodes")], _totals(connection))


def _lines(logs: list[str]) -> list[str]:
    """Tables ``lines``, with the kind of answer of each line, and ``happened``."""
    numbers = ", ".join(f"TRY_CAST(j->>'{name}' AS {kind}) AS {name}" for name, kind in FIELDS.items())
    texts = ", ".join(f"substr(j->>'{name}', 1, 256) AS {name}" for name in TEXTS)
    wrong = " OR ".join(f"coalesce(json_type(j, '$.{name}') NOT IN ({_types(FIELDS[name])}), false)" for name in MATTER)
    return [
        f"""CREATE TABLE said AS SELECT line, json_valid(line) AND line[1] = '{{' AS valid,
            CASE WHEN json_valid(line) AND line[1] = '{{' THEN line::JSON ELSE '{{}}'::JSON END AS j
            FROM read_csv({logs}, header = false, columns = {{'line': 'VARCHAR'}}, delim = '\x01', quote = '',
                escape = '', auto_detect = false) WHERE trim(line) <> ''""",
        f"CREATE TABLE fields AS SELECT valid, {wrong} AS wrong, {numbers}, {texts} FROM said",
        f"CREATE TABLE lines AS SELECT *, {_answer()} AS answer FROM fields",
        "CREATE TABLE happened AS SELECT DISTINCT node, channel, event, ts_us FROM lines WHERE answer = 'event'",
    ]


def _hash(connection: DuckDBPyConnection, name: str, bit: Callable[[Any], int]) -> None:
    """A table with the bit of each value of a column."""
    values = [
        row[0] for row in connection.execute(f"SELECT DISTINCT {name} FROM lines").fetchall() if row[0] is not None
    ]
    pairs = f"SELECT unnest(?) AS {name}, unnest(?) AS {name}_bit"
    connection.execute(f"CREATE TABLE {name}_bits ({name} {FIELDS.get(name, 'VARCHAR')}, {name}_bit INTEGER)")
    if values:
        connection.execute(f"INSERT INTO {name}_bits {pairs}", [values, [bit(value) for value in values]])


def _exchanges() -> str:
    return f"""CREATE TABLE exchanges AS SELECT answer, node, channel, release, client, {_network()} AS net, ts_us,
        coalesce({_bounded("rseq")}, {_bounded("seq")}) AS seq, {_bounded("next_seq")} AS head, conn_bit, node_bit,
        CASE WHEN retry_after_ms >= 0 THEN retry_after_ms END AS retry_after_ms,
        CASE WHEN guard_ms BETWEEN 0 AND {7 * 86_400 * 1_000_000} THEN guard_ms ELSE 0 END AS guard_ms,
        CASE WHEN dur_us BETWEEN 0 AND {7 * 86_400 * 1_000_000} THEN dur_us ELSE 0 END AS dur_us,
        coalesce(eos, false)::INTEGER AS closed,
        coalesce(answer IN ('served', 'zero_byte', 'ended')
            AND wait_us BETWEEN 256000 AND {7 * 86_400 * 1_000_000}, false)::INTEGER AS waited
        FROM lines LEFT JOIN conn_bits USING (conn) LEFT JOIN node_bits USING (node)
        WHERE answer NOT IN ('event', 'unparsable')"""


def _types(kind: str) -> str:
    return "'BOOLEAN', 'NULL'" if kind == "BOOLEAN" else "'BIGINT', 'UBIGINT', 'NULL'"


def _bounded(name: str) -> str:
    return f"CASE WHEN {name} BETWEEN 0 AND {10**15 - 1} THEN {name} END"


def _answer() -> str:
    read = "op = 'read' AND coalesce(method, 'GET') = 'GET' AND status = 200"
    left = "coalesce(reason, '') IN ('client_gone', 'evicted')"
    return f"""CASE
        WHEN NOT valid OR wrong OR coalesce(v, 1) <> 1 OR NOT coalesce(ts_us BETWEEN 1 AND 4102444800000000, false)
            OR coalesce(kind, '') NOT IN ('exchange', 'event') THEN 'unparsable'
        WHEN kind = 'event' THEN 'event'
        WHEN {read} AND coalesce(bytes_out, 0) <> 0 THEN 'served'
        WHEN status IN (429, 503) THEN 'overload' WHEN status >= 500 THEN 'server_error'
        WHEN status = 404 AND coalesce(op, '') <> 'api' THEN 'not_found'
        WHEN status = 470 AND coalesce(op, '') <> 'api' THEN 'seq_missing'
        WHEN status IN (400, 401, 403, 405) AND channel IS NOT NULL AND coalesce(op, '') <> 'api' THEN 'rejected'
        WHEN op = 'read' AND coalesce(method, 'GET') = 'GET' AND coalesce(bytes_out, 0) = 0 AND status IS NULL
            AND reason = 'client_gone' AND (dur_us IS NULL OR dur_us < 2000000) THEN 'abandoned'
        WHEN {read} AND NOT {left} AND eos THEN 'ended' WHEN {read} AND NOT {left} THEN 'zero_byte'
        WHEN op = 'publish' AND NOT {left} THEN 'post' ELSE 'ok' END"""


def _network() -> str:
    return """CASE WHEN ip LIKE '%.%' THEN regexp_extract(ip, '([^:.]*\\.[^.]*\\.[^.]*)', 1) || '.0/24'
        WHEN ip LIKE '%:%' THEN array_to_string(string_split(string_split(ip, '::')[1], ':')[:3], ':') || '::/48' END"""


def _rows(connection: DuckDBPyConnection, query: str) -> list[dict[str, Any]]:
    found = connection.execute(query)
    names = [column[0] for column in found.description or ()]
    return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def _episode(row: dict[str, Any]) -> dict[str, Any]:
    same = (
        "class",
        "severity",
        "n",
        "hits",
        "n_clients",
        "n_channels",
        "node",
        "release",
        "seq_lo",
        "seq_hi",
        "trigger",
    )
    return {name: row[name] for name in same} | {
        "start_us": row["first_us"],
        "end_us": row["last_us"],
        "peak_rps": round(row["peak_rps"], 3),
        # Each name once, where it is worst.
        **{name: list(dict.fromkeys(row[name] or ()))[: StormParams().max_names] for name in ("clients", "channels")},
    }


def _totals(connection: DuckDBPyConnection) -> dict[str, Any]:
    counts = {
        row["answer"]: row["n"] for row in _rows(connection, "SELECT answer, count(*) AS n FROM lines GROUP BY 1")
    }
    (sums,) = _rows(
        connection,
        """SELECT coalesce(sum(bytes_in), 0)::BIGINT AS bytes_in, coalesce(sum(bytes_out), 0)::BIGINT AS bytes_out,
            round(coalesce(sum(dur_us), 0) / 1e6, 6) AS handler_s, count(*) AS requests,
            count(*) FILTER (client IS NULL) AS anonymous
            FROM lines WHERE answer NOT IN ('event', 'unparsable')""",
    )
    (span,) = _rows(
        connection,
        """SELECT min(ts_us) AS start_us, max(ts_us) AS end_us, count(DISTINCT node) AS nodes
            FROM lines WHERE answer <> 'unparsable'""",
    )
    events, unparsable = counts.pop("event", 0), counts.pop("unparsable", 0)
    lines = sums["requests"] + events + unparsable
    by_answer = dict(sorted(counts.items()))
    return sums | span | {"lines": lines, "events": events, "unparsable": unparsable, "by_answer": by_answer}
