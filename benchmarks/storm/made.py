"""Access logs of any size in seconds, written by DuckDB: a healthy fleet, with storms and look-alikes planted in it.

A thousand viewers each read one of a hundred channels on four nodes, a segment every 1.1 s; that makes 1,000 lines a
second. Every 30,000 lines hold a storm of 150 lines (eight kinds in turn) and a look-alike of 100. The shapes differ in
nothing but whose the viewers' lines are. A viewer asks for the next segment while it gets the present one, as
subscribers do, and so waits about as long as a segment takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from tricklecast.trickle.records import SCHEMA

VIEWERS: Final = 1000
CHANNELS: Final = 100
NODES: Final = 4
LINES_PER_STORM: Final = 30_000
STORM_LINES: Final = 150
TRAP_LINES: Final = 100
BASE_US: Final = 1_760_000_000_000_000
START_US: Final = 600_000_000
"""The servers started so long before: a start is no cue for what happens later."""

LINE_US: Final = 1000
"""Between two lines, microseconds."""

_TYPES: Final = {"int": "INTEGER", "long": "BIGINT", "string": "VARCHAR", "boolean": "BOOLEAN"}


class Clients(StrEnum):
    """Whose the lines are."""

    FEW = "few"
    """A thousand clients, from the first second to the last."""
    HOT = "hot"
    """Half of the viewers' lines are one client's: a skewed key."""
    SESSIONS = "sessions"
    """A thousand times as many clients, of which a thousand are there at a time, for a thousandth of the log each."""
    SCATTERED = "scattered"
    """A thousand times as many clients, each of whose lines lies anywhere: no key comes twice in a minute."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A log to be made.

    Attributes:
        lines: how many, about (to 0.1 %).
        clients: whose they are.
    """

    lines: int
    clients: Clients = Clients.FEW

    @property
    def storms(self) -> int:
        """How many storms are planted, and how many look-alikes."""
        return max(1, self.lines // LINES_PER_STORM)

    @property
    def healthy(self) -> int:
        """Lines besides them."""
        return max(1, self.lines - self.storms * (STORM_LINES + TRAP_LINES + 1))

    @property
    def name(self) -> str:
        """For files and tables."""
        return f"{self.lines / 1e6:g}M-{self.clients}"


def make(shape: Shape, folder: Path) -> Path:
    """Writes a log, as the servers write it, if it is not there yet; gives its folder, with a file of each server."""
    import duckdb

    path = folder / shape.name
    if not path.exists():
        unfinished = path.with_suffix(".tmp")
        unfinished.mkdir(parents=True, exist_ok=True)
        with duckdb.connect() as connection:
            connection.execute(f"CREATE TEMP VIEW made AS {_log(shape)}")
            connection.execute("CREATE TEMP TABLE log AS SELECT * FROM made ORDER BY node, ts_us + coalesce(dur_us, 0)")
            for node in range(NODES):
                query = f"SELECT {_as_json()} FROM log WHERE node = 'node-{node}'"
                options = "(FORMAT csv, HEADER false, QUOTE '', ESCAPE '', DELIMITER '\t')"
                connection.execute(f"COPY ({query}) TO '{unfinished / f'access-{node}.jsonl'}' {options}")
        unfinished.rename(path)
    return path


def _as_json() -> str:
    """A line as the server writes it: fields that do not apply are left out."""
    texts = []
    for name, kind in SCHEMA:
        value = f"""'"' || {name} || '"'""" if kind == "string" else f"{name}::VARCHAR"
        texts.append(f"""coalesce(',"{name}":' || {value}, '')""")
    return f"'{{' || substr({' || '.join(texts)}, 2) || '}}'"


def _log(shape: Shape) -> str:
    parts = [_healthy(shape), _storms(shape), _traps(shape), _channel_ends(shape), _starts()]
    return " UNION ALL BY NAME ".join(f"({_typed(part)})" for part in parts)


def _typed(part: str) -> str:
    """A part with all columns of the schema: what it does not say is null."""
    nothing = ", ".join(f"NULL::{_TYPES[kind]} AS {name}" for name, kind in SCHEMA)
    columns = ", ".join(f"{name}::{_TYPES[kind]} AS {name}" for name, kind in SCHEMA)
    return f"SELECT {columns} FROM (SELECT {nothing} WHERE false UNION ALL BY NAME {part})"


_USUAL: Final = """1 AS v, 'exchange' AS kind, '10.' || (conn % 250) || '.' || (conn // 250 % 250) || '.7' AS ip,
    'viewer/1.' || (conn % 3) AS release, release || ' (linux)' AS ua, 1 AS attempt, 0 AS bytes_in"""

_AT_ONCE: Final = "500 + h % 3000 AS wait_us, 700 + h % 4000 AS dur_us"


def _healthy(shape: Shape) -> str:
    """Viewers and publishers; one line in a hundred goes to the API, one in a thousand is a stray 404, 470 or end."""
    owner = {
        Clients.FEW: "'viewer-' || slot",
        Clients.HOT: "IF(slot % 2 = 0, 'hot', 'viewer-' || slot)",
        Clients.SESSIONS: f"'viewer-' || (slot + {VIEWERS} * (i * {VIEWERS} // {shape.healthy}))",
        Clients.SCATTERED: f"'viewer-' || (slot + {VIEWERS} * (h // 7 % {VIEWERS}))",
    }[shape.clients]
    hot = f"slot % 2 = 0 AND slot < {VIEWERS}" if shape.clients is Clients.HOT else "false"
    return f"""
    SELECT slot AS conn, {_USUAL}, {BASE_US} + i * {LINE_US} + h % {LINE_US} AS ts_us, epoch_of AS epoch, seq, next_seq,
        IF(what = 'served' AND h % 10 > 0, 900000, 500) + h % 200000 AS wait_us,
        wait_us + 100000 + h % 900000 AS dur_us,
        'node-' || (place % {NODES}) AS node,
        CASE WHEN what = 'api' THEN NULL WHEN {hot} THEN 'hot' ELSE 'film-' || place END AS channel,
        CASE WHEN what = 'post' THEN 'studio-' || place ELSE {owner} END AS client,
        CASE what WHEN 'post' THEN 'publish' WHEN 'api' THEN 'api' ELSE 'read' END AS op,
        IF(what = 'post', 'POST', 'GET') AS method,
        '/trickle/film-' || place || '/' || seq AS path,
        CASE what WHEN 'gone' THEN 404 WHEN 'ahead' THEN 470 ELSE 200 END AS status,
        CASE WHEN what NOT IN ('gone', 'ahead', 'api') THEN seq END AS rseq,
        CASE what WHEN 'gone' THEN 'not_found' WHEN 'ahead' THEN 'ahead' ELSE 'complete' END AS reason,
        IF(what = 'served', 8192 + h % 60000, 0) AS bytes_out, what = 'end' AS eos
    FROM (SELECT *, CASE WHEN slot >= {VIEWERS} THEN 'post' WHEN h % 100 = 5 THEN 'api' WHEN h % 1000 = 6 THEN 'gone'
            WHEN h % 1000 = 7 THEN 'ahead' WHEN h % 1000 = 8 THEN 'end' ELSE 'served' END AS what,
            1 AS epoch_of, slot % {CHANNELS} AS place, IF({hot}, i, turn) AS seq, IF({hot}, i, turn) + 1 AS next_seq
        FROM (SELECT i, i % {VIEWERS + CHANNELS} AS slot, i // {VIEWERS + CHANNELS} AS turn,
                (hash(i) % 1000000007)::BIGINT AS h FROM range({shape.healthy}) AS t(i)))"""


def _storms(shape: Shape) -> str:
    """Eight kinds of storm in turn, 20 requests a second for 7.5 s."""
    return f"""
    SELECT 100000 + s AS conn, {_USUAL}, {_AT_ONCE}, {_moment(shape)} + turn * 50000 + h % 9000 AS ts_us,
        'node-' || (s % {NODES}) AS node, 'rogue-' || s AS client, 'dead-' || s AS channel,
        IF(what = 4, 'publish', 'read') AS op, IF(what = 4, 'POST', 'GET') AS method, '/trickle/dead-' || s AS path,
        [404, 470, 470, 503, 409, 200, 200, 500][what::INTEGER + 1] AS status,
        CASE what WHEN 2 THEN 20 + turn WHEN 1 THEN 4 ELSE 7 END AS seq,
        CASE WHEN what IN (4, 5, 6) THEN 7 END AS rseq, CASE what WHEN 1 THEN 90 ELSE 7 END AS next_seq,
        ['not_found', 'gone', 'ahead', 'limit:readers', 'conflict', 'complete', 'empty', 'error'][what::INTEGER + 1]
            AS reason,
        CASE what WHEN 3 THEN 1000 END AS retry_after_ms, IF(what = 5, 8192, 0) AS bytes_out, false AS eos
    FROM (SELECT s, turn, s % 8 AS what, (hash(s * 1000 + turn) % 1000000007)::BIGINT AS h
        FROM range({shape.storms}) AS a(s), range({STORM_LINES}) AS b(turn))"""


def _traps(shape: Shape) -> str:
    """Two kinds of look-alike in turn: every subscriber's one closed answer, and polite retries of many clients."""
    return f"""
    SELECT 200000 + turn AS conn, {_USUAL}, {_AT_ONCE},
        {_moment(shape)} + 12000000 + IF(what = 0, h % 200000, turn % 5 * 3000000 + h % 900000) AS ts_us,
        'node-' || (s % {NODES}) AS node, 'polite-' || s || '-' || IF(what = 0, turn, turn // 5) AS client,
        'over-' || s AS channel, 'read' AS op, 'GET' AS method, '/trickle/over-' || s AS path,
        IF(what = 0, 200, 503) AS status, 9 AS seq, CASE WHEN what = 0 THEN 9 END AS rseq, 9 AS next_seq,
        IF(what = 0, 'terminated', 'limit:readers') AS reason, CASE WHEN what = 1 THEN 2000 END AS retry_after_ms,
        what = 0 AS eos, 0 AS bytes_out
    FROM (SELECT s, turn, s % 2 AS what, (hash(s * 1000 + turn + 500) % 1000000007)::BIGINT AS h
        FROM range({shape.storms}) AS a(s), range({TRAP_LINES}) AS b(turn))"""


def _moment(shape: Shape) -> str:
    """When a storm begins: they are spread over the log."""
    return f"({BASE_US} + s * {shape.healthy * LINE_US // shape.storms} + 2000000)"


def _channel_ends(shape: Shape) -> str:
    return f"""
    SELECT 1 AS v, 'event' AS kind, 'channel_end' AS event, 'deleted' AS detail, {_moment(shape)} - 500000 AS ts_us,
        'node-' || (s % {NODES}) AS node, 'dead-' || s AS channel FROM range({shape.storms}) AS a(s)"""


def _starts() -> str:
    return f"""
    SELECT 1 AS v, 'event' AS kind, 'server_start' AS event, {BASE_US} - {START_US} AS ts_us, 'node-' || n AS node
    FROM range({NODES}) AS a(n)"""
