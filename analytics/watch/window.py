"""The roll-up of the last minutes in DuckDB, and the report's rules over it.

Nothing here believes a clock of the log: how old a row is follows from when it was read. A line that is years ahead is
a row like any other, and so are those of a server whose clock is wrong.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import duckdb

from tricklecast.analytics.lines import Format, Reading
from tricklecast.analytics.lines.dialect import text
from tricklecast.analytics.lines.reading import selected
from tricklecast.analytics.report.model import Summary
from tricklecast.analytics.rules import engine
from tricklecast.analytics.rules.incidents import Incident, found
from tricklecast.analytics.rules.params import Params
from tricklecast.analytics.scan import embedded
from tricklecast.analytics.scan.normalise import COLUMNS, normalise_sql
from tricklecast.analytics.scan.reduce import FAILURES, ONCE_PER_SEQ, QUERIES, SELDOM, WATCHED, quoted
from tricklecast.analytics.scan.rollup import KEY, MEASURES, merge_sql, roll_up_sql

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types

WINDOW_S: Final = 300.0
"""How long a row is kept after it was read. Rows of open incidents, and events, are kept for longer. Seconds."""

OPEN_S: Final = 3600.0
"""How long those are kept. Seconds."""

MAX_ROWS: Final = 100_000
"""Rows that are kept. Of more, those of the fewest lines are dropped and counted; events and incidents stay."""

TIDY_S: Final = 15.0
"""How often rows of the same key are added up. Seconds."""

SKEW_S: Final = 600.0
"""A server whose newest line is this far from when it was read has a wrong clock, or is read late. Seconds."""

FEW_ROWS: Final = 10_000
"""Up to so many rows the rules run as they were planned once; beyond, they are planned anew for the rows that are."""

MAX_FORMATS: Final = 100
_TABLE: Final = re.compile(r"CREATE OR REPLACE TEMP TABLE (\w+) AS\s(.*)", re.DOTALL)
_GROWN: Final = 1.25
_HALVED_US: Final = 120_000_000
_FLEET_US: Final = 10_000_000
_WATCHED: Final = frozenset(WATCHED)
_FAILURES: Final = frozenset(FAILURES)
_ONCE_PER_SEQ: Final = frozenset(ONCE_PER_SEQ)

NAMES: Final = (*KEY, *(one.name for one in MEASURES), "seen_us")
_TYPES: Final = {"named": "BOOLEAN", "bucket_us": "BIGINT", "seen_us": "BIGINT"} | {
    name: "VARCHAR" for name in KEY if name not in ("named", "bucket_us")
}
TYPES: Final = tuple((_TYPES | {one.name: one.type for one in MEASURES})[name] for name in NAMES)
_BITS, _LO, _HI, _NETWORK = (NAMES.index(name) for name in ("seq_bits", "seq_lo", "seq_hi", "network"))

Columns = list[list[Any]]


_SEEN: Final = """
SELECT e.incident, max(p.seen_us)
FROM (SELECT incident, unnest(clients) AS client, first_us, last_us FROM episodes) e
    JOIN part p ON p.client = e.client AND p.last_us BETWEEN e.first_us AND e.last_us
GROUP BY e.incident"""


_ASKED: Final = f"""
WITH asked AS (
    SELECT unnest(list_distinct([client, network])) AS client, channel, first_us, last_us, seen_us FROM part
    WHERE last_us >= $since_us
        AND (answer NOT IN ({quoted(ONCE_PER_SEQ)}) OR (seq_lo >= $seq_lo AND seq_hi <= $seq_hi))
),
spans AS (
    SELECT *, sum(starts) OVER (who ROWS UNBOUNDED PRECEDING) AS span
    FROM (
        SELECT *, CASE WHEN first_us - max(last_us) OVER (who ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
            <= $gap_us THEN 0 ELSE 1 END AS starts
        FROM asked
        WHERE client IN (SELECT unnest($clients::VARCHAR[]))
            AND (channel IN (SELECT unnest($channels::VARCHAR[])) OR len($channels::VARCHAR[]) = 0)
        WINDOW who AS (PARTITION BY client, channel ORDER BY first_us, last_us)
    )
    WINDOW who AS (PARTITION BY client, channel ORDER BY first_us, last_us)
)
SELECT max(seen_us)
FROM (
    SELECT max(seen_us) AS seen_us FROM spans
    GROUP BY client, channel, span HAVING min(first_us) <= $until_us + $gap_us
)"""


@dataclass(frozen=True, slots=True)
class Found:
    """An incident that the rules have found.

    Attributes:
        incident: as in the report. slow: whether it may pause for longer because it is a slow one.
        seen_us: when its last line was read, microseconds since the epoch.
    """

    incident: Incident
    slow: bool = False
    seen_us: int | None = None


@dataclass(slots=True)
class Added:
    """What some lines came to.

    Attributes:
        lines: how many; bad: how many of them could not be read.
        columns: their roll-up, to be kept (:meth:`Window.restore`).
    """

    lines: int = 0
    bad: int = 0
    columns: Columns = field(default_factory=lambda: [[] for _ in NAMES])


class Window:
    """The last minutes.

    Attributes:
        dropped: lines whose rows were dropped because there were too many.
        skew_s: servers with a wrong clock, and by how much, seconds.
    """

    def __init__(
        self, params: Params | None = None, reading: Reading | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """
        Args:
            params: thresholds; reading: how lines are read; clock: seconds.
        """
        self._params = params or Params()
        self._reading = reading or Reading()
        self._clock = clock
        self._rules = embedded.connect(0)
        shape = ", ".join(f"{name} {kind}" for name, kind in zip(NAMES, TYPES, strict=True))
        self._rules.execute(f"CREATE TABLE part ({shape})")
        self._rules.execute("CREATE TABLE raw_line (file INT, no BIGINT, line VARCHAR)")
        self._reader = self._rules.cursor()
        # To plan how to read a few lines best takes longer than to read them.
        self._reader.execute("PRAGMA disable_optimizer")
        self._few = self._rules.cursor()
        self._few.execute("PRAGMA disable_optimizer")
        self._steps: list[str] = []
        self._formats: dict[object, str] = {}
        self._tidy_at, self._fresh = clock() + TIDY_S, 0
        self.suspects = Suspects(self._params)
        self.dropped = 0
        self.skew_s: dict[str, float] = {}

    def close(self) -> None:
        """Frees the memory."""
        self._reader.close()
        self._few.close()
        self._rules.close()

    def restore(self, kept: Iterable[Columns], now_us: int) -> None:
        """Brings rows back that an earlier run has kept."""
        values = ", ".join(f"unnest(?::{kind}[])" for kind in TYPES)
        for columns in kept:
            if len(columns) == len(NAMES) and columns[0]:
                self._rules.execute(f"INSERT INTO part SELECT {values}", columns)
                self.suspects.add(list(zip(*columns, strict=True)), now_us)

    def add(self, form: Format, lines: Sequence[str], now_us: int, node: str | None = None) -> Added:
        """Adds lines.

        Args:
            form: of all of them. lines: without their ends. now_us: when they were read, microseconds since the epoch.
            node: the server of lines that do not name one.
        """
        statement = self._statement(form)
        self._reader.execute("INSERT INTO raw_line SELECT 0, 1, unnest(?::VARCHAR[])", [list(lines)])
        try:
            rows = self._reader.execute(f"EXECUTE {statement}({int(now_us)}, {text(node or '')})").fetchall()
        finally:
            self._reader.execute("DELETE FROM raw_line")
        answer, n = NAMES.index("answer"), NAMES.index("n")
        counts: dict[str, int] = defaultdict(int)
        for row in rows:
            counts[row[answer]] += row[n]
        self._fresh += len(rows)
        self.suspects.add(rows, now_us)
        self._note_clocks(rows, now_us)
        columns = [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in NAMES]
        return Added(sum(counts.values()), counts["unparsable"], columns)

    def add_rows(self, rows: pa.Table, now_us: int) -> Columns:
        """Adds rows that were rolled up elsewhere; returns them as :meth:`add` does.

        Args:
            rows: with the columns of the roll-up, in any order, and ``seen_us`` if they were not all read now.
            now_us: when they came, microseconds since the epoch.
        """
        columns = [rows[name].to_pylist() for name in NAMES if name in rows.column_names]
        if len(columns) < len(NAMES):
            columns.append([now_us] * rows.num_rows)
        self.restore([columns], now_us)
        self._fresh += rows.num_rows
        self._note_clocks(list(zip(*columns, strict=True)), now_us)
        return columns

    def _statement(self, form: Format) -> str:
        """The name of the prepared statement that adds lines of a format."""
        fields = form.fields and (form.fields.columns, tuple(form.fields.fields.items()))
        key = (form.name, fields, form.present, form.quoted)
        if key not in self._formats:
            if len(self._formats) == MAX_FORMATS:
                self._reader.execute(f"DEALLOCATE {self._formats.pop(next(iter(self._formats)))}")
            raw = "SELECT file, no, line FROM raw_line"
            select = selected(form, self._reading, raw, "nullif(CAST($2 AS VARCHAR), '')")
            columns = ", ".join(name for name in COLUMNS if name != "kind")
            line = f"(SELECT CASE WHEN bad IS NULL THEN kind END AS kind, {columns} FROM ({select}) chunk) line"
            rows = normalise_sql().replace("FROM line\n", f"FROM {line}\n")
            name = f"add_{len(self._formats)}_{self._clock():.0f}"
            self._reader.execute(
                f"PREPARE {name} AS INSERT INTO part"
                f" SELECT *, CAST($1 AS BIGINT) FROM ({roll_up_sql(f'({rows}) rows_')}) rolled RETURNING *"
            )
            self._formats[key] = name
        return self._formats[key]

    def _note_clocks(self, rows: Sequence[tuple[Any, ...]], now_us: int) -> None:
        """How far the newest line of each server is from now; one line among many says nothing."""
        newest: dict[str, list[int]] = defaultdict(list)
        node, last = NAMES.index("node"), NAMES.index("last_us")
        for row in rows:
            if row[node] and row[last] is not None:
                newest[row[node]].append(row[last])
        for name, moments in newest.items():
            off_s = (sorted(moments)[len(moments) // 2] - now_us) / 1e6
            if abs(off_s) >= SKEW_S:
                self.skew_s[name] = off_s
            else:
                self.skew_s.pop(name, None)

    # --- rules --------------------------------------------------------------------------------------------------------

    def warm_up(self) -> None:
        """Plans the rules, so that the first storm does not wait for that."""
        if self._steps:
            return
        self._few.execute(engine.prelude(self._params))
        queries = [("rollup", merge_sql("part")), *QUERIES.items()]
        for step in engine.STEPS:
            texts = (statement.query for statement in duckdb.extract_statements(engine.step_sql(step)))
            queries += [(made[1], made[2].rstrip("; \n")) for made in map(_TABLE.search, texts) if made is not None]
        for table, query in queries:
            self._few.execute(f"CREATE TEMP TABLE {table} AS {query}")
        for table, query in queries:
            self._few.execute(f"PREPARE make_{table} AS INSERT INTO {table} {query}")
        self._steps = [table for table, _ in queries]

    def judge(self) -> list[Found]:
        """The incidents of the last minutes."""
        rows = self._rules.execute("SELECT count(*) FROM part").fetchone()
        if rows is not None and rows[0] <= FEW_ROWS:
            # To plan the rules takes longer than to run them, and they do not change.
            self.warm_up()
            made = self._few
            for table in self._steps:
                made.execute(f"DELETE FROM {table}")
                made.execute(f"EXECUTE make_{table}")
        else:
            made = self._rules
            made.execute(f"CREATE OR REPLACE TEMP TABLE rollup AS {merge_sql('part')}")
            embedded.reduce(made)
            engine.run(made, self._params)
        incidents = found(made)
        slow = dict(made.execute("SELECT incident, bool_or(slow) FROM episodes GROUP BY incident").fetchall())
        seen = dict(made.execute(_SEEN).fetchall())
        return [Found(one, bool(slow.get(one.number)), seen.get(one.number)) for one in incidents]

    def asked(self, incident: Summary, clients: Sequence[str], channels: Sequence[str], gap_us: int) -> int | None:
        """When the last request was read with which a client of an incident goes on, microseconds since the epoch.

        Args:
            incident: as it was found last. clients, channels: all of them. gap_us: a longer pause is the end.

        It goes on while it gets no answer that helps it, of whatever kind, without a longer pause. The rules need more
        requests before they see that if the kind has changed (the channel has ended, then 404) or the rate has fallen.
        """
        values = {
            "clients": list(clients),
            "channels": list(channels),
            "since_us": incident.since_us,
            "until_us": incident.until_us,
            "seq_lo": incident.seq_lo,
            "seq_hi": incident.seq_hi,
            "gap_us": gap_us,
        }
        row = self._rules.execute(_ASKED, values).fetchone()
        return row[0] if row else None

    def tidy(self, open_clients: Sequence[str], now_us: int) -> bool:
        """Adds up rows of the same key and drops the old ones, now and then.

        Args:
            open_clients: whose incidents are open.

        Returns:
            whether it was done: then :meth:`rows` stand for all that were kept before.
        """
        if self._clock() < self._tidy_at and self._fresh < MAX_ROWS:
            return False
        self._fresh = 0
        old, oldest = now_us - round(WINDOW_S * 1e6), now_us - round(OPEN_S * 1e6)
        merged = merge_sql("part").replace(" FROM part ", ", max(seen_us) AS seen_us FROM part ")
        self._rules.execute(
            f"""CREATE OR REPLACE TEMP TABLE tidy AS
            SELECT *, row_number() OVER (ORDER BY keep DESC, n DESC, seen_us DESC) AS place
            FROM (SELECT *, coalesce(answer = 'event' OR list_contains(?::VARCHAR[], client), false) AS keep
                FROM ({merged}))
            WHERE seen_us >= CASE WHEN keep THEN {oldest:d} ELSE {old:d} END""",
            [list(open_clients)],
        )
        beyond = self._rules.execute(f"SELECT coalesce(sum(n), 0) FROM tidy WHERE place > {MAX_ROWS}").fetchone()
        self.dropped += int(beyond[0]) if beyond else 0
        names = ", ".join(NAMES)
        self._rules.execute("DELETE FROM part")
        self._rules.execute(f"INSERT INTO part SELECT {names} FROM tidy WHERE place <= {MAX_ROWS}")
        self._rules.execute("DROP TABLE tidy")
        self.suspects.forget(now_us)
        left = self._rules.execute("SELECT count(*) FROM part").fetchone()
        # Many rows take long to write down.
        self._tidy_at = self._clock() + max(TIDY_S, left[0] / 1_000 if left else 0)
        return True

    def rows(self) -> Columns:
        """All rows, to be kept."""
        left = self._rules.execute(f"SELECT {', '.join(f'list({name})' for name in NAMES)} FROM part").fetchone()
        return [column or [] for column in left or ()]


@dataclass(slots=True)
class _Key:
    """What one client got of one kind on one channel; ``n`` counts what may be a repeat, without the last bucket."""

    since_us: int
    seen_us: int
    n: int = 0
    next: float = 0.0
    bucket: tuple[int, int, int, int, int] | None = None
    before: tuple[int, int, int, int, int] | None = None

    def hits(self) -> int:
        """How many lines may be repeats."""
        return self.n + (_repeats(self.bucket, self.before) if self.bucket else 0)


class Suspects:
    """Which lines may be a storm by now: a necessary condition of the rules, in a fraction of their time.

    The rules look only at keys that have enough lines (``buckets.sql``), and at seconds with enough clients
    (``fleets.sql``). A key is worth a look when it has so many, and again when it has a quarter more.

    Attributes:
        due: there may be an incident that is not known. many: a key that has gained lines has enough for one.
        warm: a key is about to have enough.
    """

    def __init__(self, params: Params) -> None:
        """
        Args:
            params: thresholds.
        """
        # Of what repeats, the first is none.
        self._enough = max(1, min(params.fast_hits, params.slow_hits) - 1)
        self._many = min(params.many_clients, params.herd_clients)
        self._gap_us = round(params.slow_gap_s * 1e6)
        self._keys: dict[tuple[Any, ...], _Key] = {}
        self._failed: dict[str, deque[tuple[int, str, int]]] = defaultdict(deque)
        self._next: dict[str, float] = {}
        self._touched: set[tuple[Any, ...]] = set()
        self.due = self.many = self.warm = False

    def add(self, rows: Iterable[tuple[Any, ...]], now_us: int) -> None:
        """Rows of the roll-up, with the columns :data:`NAMES`."""
        for row in rows:
            answer, node, channel, client, named, _, bucket_us, n = row[:8]
            if client is None or answer not in _WATCHED:
                continue
            failure = answer in _FAILURES
            place = "" if failure or answer == "web" else node
            names = [(client, channel, place, "failure" if failure else answer)]
            if failure and named and n <= SELDOM and row[_NETWORK]:
                # It may be a new name of a client that has failed before.
                names.append((row[_NETWORK], channel, "", "failure"))
            for name in names:
                key = self._keys.get(name)
                if key is None or now_us - key.seen_us > self._gap_us:
                    key = self._keys[name] = _Key(now_us, now_us, next=self._enough)
                elif now_us - key.since_us > _HALVED_US:
                    # What is slower than so few in so long is no storm.
                    key.since_us, key.n, key.next = now_us, key.n // 2, max(self._enough, key.next / 2)
                key.seen_us = now_us
                self._touched.add(name)
                if answer in _ONCE_PER_SEQ:
                    _add_bucket(key, (bucket_us, n, row[_BITS] or 0, _or(row[_LO], 0), _or(row[_HI], -1)))
                else:
                    key.n += n
            if failure and named:
                self._failed[node].append((now_us, client, n))

    def look(self, told: Callable[[str, str | None], bool], now_us: int) -> None:
        """Looks at what was added since the last call, and sets the attributes.

        Args:
            told: whether a client's incident on a channel is open.
        """
        self.warm = False
        for name in self._touched:
            key = self._keys[name]
            hits = key.hits()
            self.many = self.many or hits >= self._enough
            self.warm = self.warm or self._enough <= 2 * hits < 2 * self._enough
            if hits >= key.next:
                key.next = hits * _GROWN
                self.due = self.due or not told(name[0], name[1])
        self._touched.clear()
        for node, failed in self._failed.items():
            while failed and now_us - failed[0][0] > _FLEET_US:
                failed.popleft()
            n = sum(one[2] for one in failed)
            due = self._next.setdefault(node, self._enough)
            if n >= due and len({one[1] for one in failed}) >= self._many:
                self._next[node] = n * _GROWN
                self.due = True
            elif 2 * n < due:
                self._next[node] = max(self._enough, n)

    def looked(self) -> None:
        """The rules have looked at all that was added."""
        self.due = self.many = False

    def forget(self, now_us: int) -> None:
        """Forgets keys and servers without lines."""
        self._keys = {name: key for name, key in self._keys.items() if now_us - key.seen_us <= self._gap_us}
        self._touched &= self._keys.keys()
        for node in [node for node, failed in self._failed.items() if not failed]:
            del self._failed[node]
            self._next.pop(node, None)


def _or(value: int | None, other: int) -> int:
    return other if value is None else value


def _add_bucket(key: _Key, added: tuple[int, int, int, int, int]) -> None:
    """Adds what one bucket of time has gained of answers that are right once per seq."""
    last = key.bucket
    if last is None or last[0] != added[0]:
        key.n += _repeats(last, key.before) if last else 0
        key.before, key.bucket = last, added
    else:
        at, n, bits, low, high = added
        key.bucket = (at, last[1] + n, last[2] | bits, min(last[3], low), max(last[4], high))


def _repeats(bucket: tuple[int, int, int, int, int], before: tuple[int, int, int, int, int] | None) -> int:
    """The most lines of a bucket that may be repeats: within it, or of the bucket before."""
    _, n, bits, low, high = bucket
    # Bits say no more than modulo 62; where nearly all are set they say nothing.
    distinct = bits.bit_count() if high - low < 62 or bits.bit_count() < 57 else high - low + 1
    repeats = max(0, n - max(1, distinct)) if bits else n
    if before is not None and bits & before[2] and low <= before[4] and before[3] <= high:
        repeats += min((bits & before[2]).bit_count(), min(high, before[4]) - max(low, before[3]) + 1)
    return repeats
