"""Which requests of a log are those of an incident, and what sets them apart from all others of the same time.

The rules see sums. To go back to lines, an incident is taken as its *members*: who got which answers, where, from when
to when. A line belongs to it if it would be added up there. Both engines run the queries here over lines that they
parse: the embedded one over all of them, a worker of Spark's over those that it holds, and its results are added up.

A *lift* is a value whose share among the requests of an incident is at least :data:`SHARE` above its share among all
other requests of these seconds, and :data:`TIMES` as large. Requests of one client are no independent witnesses, so the
clients must bear it out: if the value were as common among them as elsewhere, the chance that as many of them have it
must be below :data:`CHANCE`. An incident of a single client therefore has no lift.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import comb
from typing import TYPE_CHECKING, Final

from tricklecast.analytics.lines.records import LINE
from tricklecast.analytics.report.model import Lift
from tricklecast.analytics.report.words import lift
from tricklecast.analytics.rules.incidents import Incident
from tricklecast.analytics.scan.normalise import COLUMNS, NETWORK, normalise_sql
from tricklecast.analytics.scan.reduce import FAILURES, ONCE_PER_SEQ, quoted

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
    from duckdb import DuckDBPyConnection

SHARE: Final = 0.2
TIMES: Final = 2
CHANCE: Final = 1e-4

RARE: Final = 0.05
"""Share of a value among others from which on its rarity says nothing more: a name of one's own is no difference."""

LEAST: Final = 20
"""Requests on either side, below which shares say nothing."""

MAX_VALUES: Final = 20
"""Values of one kind that are counted of an incident; each has to be at least :data:`SHARE` of its requests."""

CLIENTS: Final = 200
"""Clients of an incident whose values are looked at, those with the smallest hashes: a sample of all."""

KINDS: Final = {
    "release": "release",
    "user agent": "ua",
    "path": "coalesce(channel, path)",
    "network": f"CASE WHEN length(ip) <= 45 THEN {NETWORK} END",
    "node": "node",
}
"""Kind of value → SQL for it."""

EVERY_COLUMNS: Final = (
    ("text", "VARCHAR"),
    ("file", "VARCHAR"),
    ("no", "BIGINT"),
    *(column for column in LINE if column[0] not in ("kind", "event", "blind")),
)
"""Columns of the lines of an incident, with DuckDB's types."""

_MEMBERS: Final = f"""
SELECT incident, unnest(answers) AS answer, client, named, channel, everywhere, nodes, seq_lo, seq_hi, since_us,
    until_us
FROM (
    SELECT incident, client, named,
        CASE
            WHEN answer = 'fleet_overload' THEN ['overload']
            WHEN answer = 'fleet_retry' THEN ['overload', 'server_error']
            WHEN answer = 'fleet_miss' THEN ['web']
            WHEN answer = 'again' THEN ['fine']
            WHEN answer = 'fleet_herd' OR answer IN ({quoted(FAILURES)}) THEN [{quoted(FAILURES)}]
            ELSE [answer] END AS answers,
        CASE WHEN len(channels) = 1 THEN channels[1] END AS channel, len(channels) <> 1 AS everywhere,
        -- Failures of one client are one case on whichever servers.
        CASE WHEN fleet OR answer NOT IN ({quoted((*FAILURES, "web"))}) THEN nodes END AS nodes,
        min(seq_lo) AS seq_lo, max(seq_hi) AS seq_hi, min(first_us) AS since_us, max(last_us) AS until_us
    FROM (SELECT *, unnest(clients) AS client FROM episodes WHERE incident IN (SELECT unnest(?::BIGINT[])))
    GROUP BY ALL
)"""

_CLIENT: Final = "m.client = l.client AND m.named = l.named"
_NETWORK_OF_CLIENT: Final = "m.client = l.network AND l.named AND NOT m.named"
"""A line belongs to a member by its client, or by its network, if the member is one."""

_PLACE: Final = {False: "NOT m.everywhere AND m.channel IS NOT DISTINCT FROM l.channel", True: "m.everywhere"}
"""Where it is a member: on one channel, or everywhere."""

_MINE: Final = f"""
WITH l AS MATERIALIZED (SELECT *, answer IN ({quoted(ONCE_PER_SEQ)}) AS counted FROM ({{rows}}))
SELECT DISTINCT incident, ref FROM ({{pairs}})
WHERE ts_us BETWEEN since_us AND until_us AND (nodes IS NULL OR list_contains(nodes, node))
    AND NOT coalesce(counted AND seq NOT BETWEEN seq_lo AND seq_hi, false)"""

_PAIRS: Final = """
    SELECT m.incident, m.since_us, m.until_us, m.nodes, m.seq_lo, m.seq_hi, l.ref, l.ts_us, l.node, l.seq, l.counted
    FROM l JOIN member m ON m.answer = l.answer AND {who} AND {where}"""


def comparable(shown: Sequence[Incident]) -> list[Incident]:
    """Incidents with enough clients for a lift: one client bears nothing out."""
    return [one for one in shown if one.named and RARE ** len(one.clients) < CHANCE]


def members(connection: DuckDBPyConnection, shown: Sequence[Incident]) -> pa.Table:
    """The clients of some incidents and their answers; of a connection on which all steps of the rules have run."""
    return connection.sql(_MEMBERS, params=[[one.number for one in shown]]).to_arrow_table()


def find(con: DuckDBPyConnection, member: pa.Table, generic: bool) -> None:
    """Makes the table ``mine``, with the columns ``incident`` and ``ref``: the ``rowid`` of a row of ``parsed_line``.

    Args:
        con: with the table ``parsed_line``. member: of :func:`members`.
        generic: whether all lines are judged as those of any web server.
    """
    con.register("member", member)
    as_web = {"op": "CAST(NULL AS VARCHAR) AS op", "channel": "CAST(NULL AS VARCHAR) AS channel"} if generic else {}
    columns = ", ".join(as_web.get(name, name) for name in COLUMNS)
    ((since, until, networks, places),) = con.execute(
        "SELECT min(since_us), max(until_us), bool_or(NOT named), list(DISTINCT everywhere) FROM member"
    ).fetchall()
    lines = f"""(SELECT {columns}, rowid AS ref FROM parsed_line
        WHERE bad IS NULL AND kind = 'exchange' AND ts_us BETWEEN {since or 0} AND {until or 0}"""
    if not networks:
        lines += " AND substr(client, 1, 256) IN (SELECT client FROM member)"
    rows = normalise_sql(more=", ref").replace("FROM line\n", f"FROM {lines}) line\n")
    # Each pair of "who" and "where" is a join over all of these lines, and few logs need more than one.
    pairs = " UNION ALL ".join(
        _PAIRS.format(who=who, where=_PLACE[everywhere])
        for who in ((_CLIENT, _NETWORK_OF_CLIENT) if networks else (_CLIENT,))
        for everywhere in places or (False,)
    )
    kept = f"SELECT ref, answer, node, channel, client, named, network, ts_us, seq FROM ({rows})"
    con.execute(f"CREATE OR REPLACE TEMP TABLE mine AS {_MINE.format(rows=kept, pairs=pairs)}")


def every_sql(con: DuckDBPyConnection, names: Sequence[str]) -> str:
    """Gives the lines of the table ``mine`` (:func:`find`), with :data:`EVERY_COLUMNS`.

    Args:
        con: gets the table ``named``, with names: those of the files, by number.
    """
    con.execute("CREATE OR REPLACE TEMP TABLE named (number INT, name VARCHAR)")
    con.executemany("INSERT INTO named VALUES (?, ?)", [*enumerate(names), (-1, None)])
    columns = ", ".join("named.name AS file" if name == "file" else f"p.{name}" for name, _ in EVERY_COLUMNS)
    return f"""SELECT {columns}
        FROM parsed_line p JOIN mine ON mine.ref = p.rowid LEFT JOIN named ON named.number = p.file"""


Row = tuple[int, str, str | None, int, list[int]]
"""Of an incident: kind of value, the value, how many requests have it, and the smallest hashes of their clients. Where
the kind is empty it is about all of its requests."""

Wanted = Sequence[tuple[int, str, str | None, int, int]]
"""Incident, kind of value, the value, and from which second to which all requests that have it are to be counted."""

Counted = Iterable[tuple[int, str, str | None, int]]
"""Incident, kind of value, the value, and how many requests have it."""


def own_sql() -> str:
    """Gives a :data:`Row` for what the requests of the table ``mine`` (:func:`find`) are like."""
    values = ", ".join(f"{value} AS {_column(kind)}" for kind, value in KINDS.items())
    each = " UNION ALL ".join(
        f"SELECT incident, '{kind}' AS kind, {_column(kind)} AS name, who, n FROM own WHERE {_column(kind)} IS NOT NULL"
        for kind in KINDS
    )
    return f"""
        WITH own AS (
            SELECT incident, CAST(hash(client) >> 1 AS BIGINT) AS who, {values}, n
            FROM (SELECT incident, client, release, ua, channel, path, ip, node, count(*) AS n
                FROM mine JOIN parsed_line ON parsed_line.rowid = ref GROUP BY ALL)
        ),
        every AS (SELECT incident, '' AS kind, NULL AS name, who, n FROM own UNION ALL {each}),
        clients AS (SELECT incident, kind, name, who, sum(n) AS n FROM every GROUP BY ALL)
        SELECT incident, kind, name, CAST(sum(n) AS BIGINT) AS requests, list(who ORDER BY who)[:{CLIENTS}] AS clients
        FROM clients GROUP BY incident, kind, name
        QUALIFY row_number() OVER (PARTITION BY incident, kind ORDER BY requests DESC, name) <= {MAX_VALUES}
        ORDER BY ALL"""


def count_sql(con: DuckDBPyConnection, wanted: Wanted) -> str:
    """Gives how many requests of the table ``parsed_line`` have some values, those of incidents too (:data:`Counted`).

    Args:
        con: gets the table ``wanted``.
    """
    columns = "incident BIGINT, kind VARCHAR, name VARCHAR, since BIGINT, until BIGINT"
    con.execute(f"CREATE OR REPLACE TEMP TABLE wanted ({columns})")
    con.executemany("INSERT INTO wanted VALUES (?, ?, ?, ?, ?)", [*wanted])
    kinds = sorted({asked[1] for asked in wanted})
    values = "".join(
        f", CASE WHEN {KINDS[kind]} IN (SELECT name FROM wanted WHERE kind = '{kind}') THEN {KINDS[kind]} END"
        f" AS {_column(kind)}"
        for kind in kinds
        if kind
    )
    return f"WITH every AS MATERIALIZED ({_EVERY.format(values=values)})" + " UNION ALL ".join(
        f"""
        SELECT w.incident, w.kind, w.name, CAST(sum(n) AS BIGINT) AS n
        FROM (SELECT second, {_column(kind) if kind else "CAST(NULL AS VARCHAR)"} AS name, sum(n) AS n
            FROM every {f"WHERE {_column(kind)} IS NOT NULL" if kind else ""} GROUP BY ALL) c
            JOIN wanted w ON w.name IS NOT DISTINCT FROM c.name AND c.second BETWEEN w.since AND w.until
        WHERE w.kind = '{kind}' GROUP BY ALL"""
        for kind in kinds
    )


_EVERY: Final = """
    SELECT ts_us // 1000000 AS second{values}, count(*) AS n FROM parsed_line
    WHERE bad IS NULL AND kind = 'exchange'
        AND ts_us // 1000000 BETWEEN (SELECT min(since) FROM wanted) AND (SELECT max(until) FROM wanted)
    GROUP BY ALL"""


def added(rows: Iterable[Row]) -> list[Row]:
    """Results of :func:`own_sql` over different lines as one."""
    n: Counter[tuple[int, str, str | None]] = Counter()
    clients: dict[tuple[int, str, str | None], set[int]] = {}
    for incident, kind, name, requests, who in rows:
        key = (incident, kind, name)
        n[key] += requests
        clients[key] = set(sorted(clients.get(key, set()).union(who))[:CLIENTS])
    return [(*key, requests, sorted(clients[key])) for key, requests in n.items()]


def lifts(
    shown: Sequence[Incident], found: Iterable[Row], count: Callable[[Wanted], Counted]
) -> dict[str, tuple[Lift, ...]]:
    """The lifts of incidents, by the incident's id.

    Args:
        found: what their own requests are like. count: counts all requests that have some values in some seconds.
    """
    known = {row[:3]: row for row in found}
    by_number = {one.number: one for one in shown if (one.number, "", None) in known}
    common: dict[int, list[Row]] = {}
    for row in known.values():
        total = known.get((row[0], "", None))
        if row[0] not in by_number or total is None or row is total:
            continue
        # The others need not be counted for what too few clients have, however rare it is.
        if row[3] >= max(LEAST, SHARE * total[3]) and _chance(row, total, RARE) < CHANCE:
            common.setdefault(row[0], [total]).append(row)
    asked = [
        (*row[:3], by_number[number].since_us // 1_000_000, by_number[number].until_us // 1_000_000)
        for number, rows in common.items()
        for row in rows
    ]
    every = {row[:3]: row[3] for row in count(asked)} if asked else {}
    made: dict[str, tuple[Lift, ...]] = {}
    for number, (total, *rows) in common.items():
        best: dict[str, Lift] = {}
        rest = every.get(total[:3], 0) - total[3]
        for row in rows if rest >= LEAST else ():
            kind, name = row[1], row[2] or ""
            here, others = row[3] / total[3], (every.get(row[:3], 0) - row[3]) / rest
            if (
                here >= TIMES * others
                and here - others >= SHARE
                and _chance(row, total, max(RARE, others)) < CHANCE
                and (kind not in best or here - others > best[kind].here - best[kind].others)
            ):
                best[kind] = lift(kind, name, here, others)  # type: ignore[arg-type]  # a kind of KINDS
        one = by_number[number]
        told = set(best).difference(_told(one, shown))
        made[one.id] = tuple(best[kind] for kind in KINDS if kind in told)
    return made


def _told(one: Incident, shown: Sequence[Incident]) -> Iterator[str]:
    """Kinds of values in which incidents differ because of how they are told apart."""
    if len(one.channels) == 1:
        yield "path"
        # A channel is on one server, as a rule.
        if not any(" /" in channel for channel in one.channels):
            yield "node"
    # What happens on several servers at one time is an incident of each.
    if any(
        other.storm == one.storm
        and other.nodes != one.nodes
        and other.since_us <= one.until_us
        and one.since_us <= other.until_us
        for other in shown
    ):
        yield "node"


def _chance(row: Row, total: Row, share: float) -> float:
    """The chance that at least this many of an incident's clients have a value, if each has it with a probability."""
    clients = len(total[4])
    having = len(set(row[4]) & set(total[4]))
    return sum(comb(clients, k) * share**k * (1 - share) ** (clients - k) for k in range(having, clients + 1))


def _column(kind: str) -> str:
    return f"v_{kind.replace(' ', '_')}"
