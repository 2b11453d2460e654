"""Runs the rules: a chain of named steps, each a file of SQL over the tables of the steps before it.

Given the tables of :mod:`analytics.scan.reduce`, every step makes temporary tables and changes nothing else, so that a
step can be pasted into DuckDB's shell after :func:`prelude`. What is found follows from the tables alone: no clock, no
state, no configuration.

To plan a table's query, with up to fifty columns and ten windows, takes DuckDB as long as to run it over a small log.
So a table that cannot have rows (:data:`NOTHING_WITHOUT`) is made empty, of the columns in ``tables.sql``: in most logs
there is no crowd, and in many no storm.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from importlib.resources import files
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from tricklecast.analytics.rules.params import Params
from tricklecast.analytics.scan.embedded import Feed
from tricklecast.analytics.scan.reduce import QUERIES

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
    from duckdb import DuckDBPyConnection, Statement

BY_CHANNEL: Final = ("buckets", "stretches")
"""Steps that need the rows of one channel and client only: any partition of ``candidate`` by channel gives the same."""

BY_PATH: Final = ("spread",)
"""Steps that need the failures of one channel only."""

BY_NODE: Final = ("fleets",)
"""Steps that need the failures of one node only, or of one channel where ``spread`` has named it as their node."""

TOGETHER: Final = ("triggers", "classes", "episodes", "paces", "incidents")
"""Steps over all stretches and fleets: few rows, whatever the log's size."""

STEPS: Final = (*BY_CHANNEL, *BY_PATH, *BY_NODE, *TOGETHER)
"""The whole chain."""

CONTRACTS: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "buckets": {"buckets": ("key chain bucket_us", "client named place family n nodes first_us last_us part coarse")},
    "stretches": {
        "islands": ("key chain part", "client named answer n hits readers own_s mean_rps enough"),
        "parts": ("key chain part first_us", "client named answer n"),
        "cures": ("client channel bucket_us", "n"),
        "stretches": ("client named channel? place family first_us", "answer n hits peak_rps nodes last_us pulse slow"),
    },
    "spread": {
        "refusals": ("channel client answer bucket_us event", "node n first_us last_us"),
        "spread": ("answer client channel first_us", "node since_us until_us last_us"),
    },
    "fleets": {
        "failures": ("node host client answer bucket_us channel?", "n first_us last_us early"),
        "fleet_seconds": ("answer node bucket_us", "n refused load first_us last_us"),
        "retries": ("answer node client channel? first_us", "since_us until_us last_us"),
        "fleet_spans": ("answer node since_us", "until_us peak_rps peak_us"),
        "fleets": ("answer node since_us", "n nodes clients channels first_us last_us pulse shared at_once insistent"),
    },
    "triggers": {
        "cases": ("id", "answer fleet n hits peak_rps mean_rps nodes clients channels first_us last_us onset_us pulse"),
        "plausible": ("answer event", "rank"),
        "near": ("id event ts_us", ""),
        "silences": ("id", ""),
        "triggered": ("id", "answer fleet n lives"),
    },
    "classes": {"classed": ("id", "class answer fleet n ahead rises")},
    "episodes": {
        "skews": ("id", "other_id node other skew_us"),
        "hubs": ("rule least_id id", ""),
        "episodes": ("id", "incident class fleet n"),
    },
    "paces": {"paces": ("incident", "pause_us")},
    "incidents": {
        "pulses": ("id from_us", "incident until_us n"),
        "parts_of_incidents": ("id", "incident part"),
        "peaks": ("incident", "peak_rps"),
        "phases": ("incident class", "n first_us last_us fleet clients"),
        "roots": ("incident", "class clear"),
        "impacts": ("incident", "n first_us last_us nodes request_share others_refused others_slowed others"),
        "incidents": ("incident", "class severity n peak_rps mean_rps first_us last_us nodes clients channels phases"),
    },
}
"""The contract of each step: its tables, with the columns that tell the rows apart and others that are never null. A
column of the first kind may be null only if it has a ``?``."""

NOTHING_WITHOUT: Final[dict[str, tuple[str, ...]]] = {
    "buckets": ("candidate",),
    "islands": ("buckets",),
    "parts": ("islands",),
    "stretches": ("parts",),
    "refusals": ("candidate",),
    "spread": ("refusals",),
    "failures": ("candidate",),
    "fleet_seconds": ("failures",),
    "retries": ("failures",),
    "fleet_spans": ("fleet_seconds", "retries"),
    "fleets": ("fleet_spans",),
    "cases": ("stretches", "fleets"),
    "near": ("happened",),
    "silences": ("fleets",),
    "triggered": ("cases",),
    "classed": ("triggered",),
    "skews": ("classed",),
    "hubs": ("classed", "skews"),
    "episodes": ("classed",),
    "paces": ("episodes",),
    "pulses": ("episodes",),
    "parts_of_incidents": ("episodes",),
    "peaks": ("pulses",),
    "phases": ("parts_of_incidents",),
    "roots": ("phases",),
    "impacts": ("parts_of_incidents",),
    "incidents": ("impacts",),
}
"""Tables that have no rows if none of these has any."""

AT_A_TIME: Final = 122_880
"""Rows of a table that a thread of DuckDB takes at a time: with fewer, a second thread costs a quarter more CPU, and
saves no time."""

FEW_ROWS: Final = 5_000
"""Up to this number of rows DuckDB's optimizer costs more than it saves: it takes a quarter of the chain's CPU."""

MOST_ROWS: Final = 40_000
"""Rows over which :class:`Planned` runs before it makes its tables anew."""

MOST: Final = 200
"""Rows of one table that :func:`explain` gives."""

REASONS: Final = "reasons"
"""The first of them: the largest case of each class and answer, with how many cases there are ("cases")."""


_TABLE: Final = re.compile(r"CREATE OR REPLACE TEMP TABLE (\w+) (?:AS\s)?(.*)", re.DOTALL)


@cache
def step_sql(step: str) -> str:
    """The text of a step."""
    return files(__package__).joinpath(f"{step}.sql").read_text()


def prelude(params: Params) -> str:
    """The macros that every step uses: the parameters, and what ``macros.sql`` defines of them."""
    return "\n".join((*params.macros(), step_sql("macros")))


@lru_cache(maxsize=32)
def _parsed(sql: str) -> list[Statement]:
    """The statements of a text, which any connection can execute. To parse the chain is a sixth of its CPU on a small
    log, and the watch runs it every few seconds."""
    import duckdb

    return duckdb.extract_statements(sql)


def run(connection: DuckDBPyConnection, params: Params | None = None, steps: Sequence[str] = STEPS) -> None:
    """Runs steps over the tables of a connection.

    Args:
        connection: with the tables that the steps read; for all of them those of
            :data:`analytics.scan.reduce.QUERIES`.
        params: thresholds. steps: names out of :data:`STEPS`, in their order.
    """
    for macro in _parsed(prelude(params or Params())):
        connection.execute(macro)
    made = {table: statement for step in steps for table, (statement, _) in _made(step).items()}
    sizes = _sizes(connection, made, steps)
    filled, rows = {table for table, size in sizes.items() if size}, max(sizes.values(), default=0)
    ((threads,),) = connection.execute("SELECT current_setting('threads')").fetchall()
    fewer = threads > 1 and rows < AT_A_TIME
    if fewer:
        connection.execute("SET threads = 1")
    if rows < FEW_ROWS:
        connection.execute("PRAGMA disable_optimizer")
    try:
        for table, statement in made.items():
            if not _may_have_rows(table, filled):
                connection.execute(_made("tables")[table][0])
                continue
            ((count,),) = connection.execute(statement).fetchall()
            if count:
                filled.add(table)
    finally:
        if fewer:
            connection.execute(f"SET threads = {threads}")
        connection.execute("PRAGMA enable_optimizer")


def _may_have_rows(table: str, filled: Container[str]) -> bool:
    needs = NOTHING_WITHOUT.get(table)
    return needs is None or any(need in filled for need in needs)


def _sizes(connection: DuckDBPyConnection, made: Collection[str], steps: Container[str]) -> dict[str, int]:
    """The numbers of rows of the tables that some steps read and do not make.

    They are counted, which takes a tenth of what it takes DuckDB to list the tables that there are.
    """
    read = {need for table in made for need in NOTHING_WITHOUT.get(table, ())}.difference(made)
    if "incidents" in steps:
        read |= QUERIES.keys() - {"candidate"}
    queries = [f"SELECT '{table}', count(*) FROM {table}" for table in sorted(read)]
    return dict(connection.execute(" UNION ALL ".join(queries)).fetchall()) if queries else {}


class Planned:
    """The whole chain over few rows, again and again: it is planned once, which takes longer than a run.

    The tables stay. Each run empties them and fills them again, and makes nothing else: DuckDB would plan a statement
    anew after any change of the catalog. What cannot have a row is not run (:data:`NOTHING_WITHOUT`): a statement over
    no rows takes nearly as long as one over a few. DuckDB's optimizer is off, as in :func:`run`.

    Attributes:
        connection: on which it runs.
    """

    def __init__(
        self, connection: DuckDBPyConnection, schema: pa.Schema, rollup: str, params: Params | None = None
    ) -> None:
        """
        Args:
            connection: on which nobody else makes tables or views. schema: of the rows of each run.
            rollup: query that makes the table ``rollup`` of them, which are the table ``part`` to it.
            params: thresholds.
        """
        self.connection = connection
        self._part, self._rollup, self._params = Feed(schema), rollup, params or Params()
        self._tables: list[str] = []
        self._rows = 0
        # Tables that may have rows.
        self._filled: set[str] = set()
        connection.register("part", self._part)

    def plan(self) -> None:
        """Plans the chain, unless it is planned: the first run need not wait for that."""
        # DuckDB gives the memory of deleted rows back with their table only.
        if self._tables and self._rows < MOST_ROWS:
            return
        self._rows = 0
        self.connection.execute("PRAGMA disable_optimizer")
        for macro in _parsed(prelude(self._params)):
            self.connection.execute(macro)
        inputs = {"rollup": self._rollup} | QUERIES
        for table, query in inputs.items():
            self.connection.execute(f"CREATE OR REPLACE TEMP TABLE {table} AS {query}")
        for statement, _ in _made("tables").values():
            self.connection.execute(statement)
        queries = inputs | {table: query for step in STEPS for table, (_, query) in _made(step).items()}
        for table, query in queries.items():
            self.connection.execute(f"PREPARE make_{table} AS INSERT INTO {table} {query}")
        self._tables = list(queries)
        self._filled = set(inputs)

    @contextmanager
    def run(self, batches: Sequence[pa.RecordBatch]) -> Iterator[DuckDBPyConnection]:
        """Runs all steps over some rows.

        Args:
            batches: of the schema.

        Yields:
            the connection, with the tables of all steps, and ``part``.
        """
        self.plan()
        self._part.batches = list(batches)
        self._rows += sum(map(len, batches))
        try:
            for table in self._tables:
                if table in self._filled:
                    self.connection.execute(f"DELETE FROM {table}")
                    self._filled.remove(table)
                if not _may_have_rows(table, self._filled):
                    continue
                self._filled.add(table)
                ((rows,),) = self.connection.execute(f"EXECUTE make_{table}").fetchall()
                if not rows:
                    self._filled.remove(table)
            yield self.connection
        finally:
            self._part.batches = []


@cache
def _made(step: str) -> dict[str, tuple[Statement, str]]:
    """The tables that a step makes, each with its statement, and the query in it."""
    made = {}
    for statement in _parsed(step_sql(step)):
        found = _TABLE.search(statement.query)
        assert found is not None, "a step makes tables and changes nothing else"
        made[found[1]] = statement, found[2]
    return made


def broken(connection: DuckDBPyConnection) -> Iterator[str]:
    """The contracts that the tables of a connection do not keep, in words; for tests."""
    present = {row[0] for row in connection.execute("SHOW TABLES").fetchall()}
    for table, (names, others) in chain.from_iterable(tables.items() for tables in CONTRACTS.values()):
        if table not in present:
            continue
        key = names.replace("?", "").split()
        (rows, keys), *_ = connection.execute(
            f"SELECT count(*), count(DISTINCT ({', '.join(key)}, 0)) FROM {table}"
        ).fetchall()
        if rows != keys:
            yield f"{table}: {rows} rows have {keys} keys ({', '.join(key)})"
        full = [name for name in (*names.split(), *others.split()) if not name.endswith("?")]
        counts = connection.execute(f"SELECT {', '.join(f'count({name})' for name in full)} FROM {table}").fetchall()[0]
        yield from (f"{table}: {name} is null" for name, count in zip(full, counts, strict=True) if count < rows)


def explain(connection: DuckDBPyConnection, incident: int) -> Iterator[tuple[str, list[str], list[tuple[Any, ...]]]]:
    """The reasons for one incident, and the rows of each table that led to it.

    Args:
        connection: on which all steps have run. incident: its ``incident`` in the table ``incidents``.

    Yields:
        name of the table, names of its columns, its first :data:`MOST` rows in the order of time.
    """
    members = f"SELECT * FROM episodes WHERE incident = {int(incident)}"
    reasons = f"""SELECT * EXCLUDE (pulse, request, bytes_in, bytes_out, incident),
            is_fast(hits, len(nodes), greatest(mean_rps, peak_rps)) AS fast,
            total(hits) OVER (PARTITION BY clients, channel) AS together,
            count(*) OVER (PARTITION BY class, answer) AS cases
        FROM ({members})
        QUALIFY row_number() OVER (PARTITION BY class, answer ORDER BY hits DESC, id) = 1
        ORDER BY fleet DESC, hits DESC, id"""
    yield REASONS, *_fetched(connection, reasons)
    who = f"SELECT unnest(clients) AS client FROM ({members})"
    where = f"SELECT unnest(channels) AS channel FROM ({members})"
    span = f"SELECT min(first_us) - 1000000 AS from_us, max(last_us) + 1000000 AS until_us FROM ({members})"
    near = f"client IN ({who}) AND (channel IN ({where}) OR channel IS NULL)"
    began, over = f"(SELECT from_us FROM ({span}))", f"(SELECT until_us FROM ({span}))"
    bounds = f"first_us <= {over} AND last_us >= {began}"
    there = f"node IN (SELECT unnest(list_append(nodes, place)) FROM ({members}))"
    ids = f"id IN (SELECT id FROM ({members}))"
    conditions = {
        "candidate": f"{near} AND {bounds}",
        "buckets": f"{near} AND {bounds}",
        "islands": f"{near} AND {bounds}",
        "stretches": f"{near} AND {bounds}",
        "fleet_seconds": f"{there} AND {bounds}",
        "fleet_spans": f"{there} AND since_us <= {over} AND until_us >= {began}",
        "fleets": f"{there} AND {bounds}",
        "triggered": ids,
        "classed": ids,
        "hubs": ids,
        "episodes": f"incident = {int(incident)}",
        "paces": f"incident = {int(incident)}",
        "peaks": f"incident = {int(incident)}",
        "phases": f"incident = {int(incident)}",
        "impacts": f"incident = {int(incident)}",
        "incidents": f"incident = {int(incident)}",
    }
    # Where Spark ran the first steps, their tables are not here.
    present = {row[0] for row in connection.execute("SHOW TABLES").fetchall()}
    for table, condition in conditions.items():
        if table not in present:
            continue
        moment = {"fleet_spans": "since_us", "hubs": "id", "paces": "incident", "peaks": "incident"}
        first = moment.get(table, "first_us")
        rows = f"SELECT * FROM {table} WHERE {condition} ORDER BY {first}, COLUMNS(*) LIMIT {MOST}"
        yield table, *_fetched(connection, rows)


def _fetched(connection: DuckDBPyConnection, sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    found = connection.execute(sql)
    return [column[0] for column in found.description or ()], found.fetchall()
