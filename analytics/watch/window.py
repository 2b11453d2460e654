"""The roll-up of the last minutes in DuckDB, and the report's rules over it.

Nothing here believes a clock of the log: how old a row is follows from when it was read. A line that is years ahead is
a row like any other, and so are those of a server whose clock is wrong.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types

from tricklecast.analytics.lines.dialect import text
from tricklecast.analytics.report.model import Summary
from tricklecast.analytics.rules import engine
from tricklecast.analytics.rules.incidents import Incident, found
from tricklecast.analytics.rules.params import Params
from tricklecast.analytics.scan import embedded
from tricklecast.analytics.scan.embedded import Feed, int64s
from tricklecast.analytics.scan.reduce import FAILURES, ONCE_PER_SEQ, SELDOM, WATCHED, quoted
from tricklecast.analytics.scan.rollup import KEY, MEASURES, merge_sql

WINDOW_S: Final = 300.0
"""How long a row is kept after it was read. Rows of open incidents, and events, are kept for longer. Seconds."""

OPEN_S: Final = 3600.0
"""How long those are kept. Seconds."""

MAX_ROWS: Final = 40_000
"""Rows that are kept. Of more, those of the fewest lines are dropped and counted; events and incidents stay."""

TIDY_US: Final = 15_000_000
"""How often rows of the same key are added up, at most. Microseconds."""

SETTLED_US: Final = 90_000_000
"""Rows of who got each segment once are added up for all clients after so long. Microseconds."""

FORGET_US: Final = 150_000_000
"""A client that sends fewer requests than are enough within this time is not worth a look. Microseconds."""

FLEET_US: Final = 30_000_000
"""The same for the clients of a crowd."""

SKEW_S: Final = 60.0
"""A server whose newest line is this far from when it was read has a wrong clock, or writes its log late. Seconds."""

MEMORY: Final = "112MB"
"""Memory of DuckDB for the rows and the rules; rows that do not fit are on disk meanwhile."""

FEW_ROWS: Final = 10_000
"""Up to this number of rows the rules run as they were planned once; beyond it they are planned anew each time."""

_GROWN: Final = 1.25

NAMES: Final = (*KEY, *(one.name for one in MEASURES), "seen_us")
_TYPES: Final = {"named": "BOOLEAN", "bucket_us": "BIGINT", "seen_us": "BIGINT"} | {
    name: "VARCHAR" for name in KEY if name not in ("named", "bucket_us")
}
TYPES: Final = tuple((_TYPES | {one.name: one.type for one in MEASURES})[name] for name in NAMES)
_SCHEMA: Final = pa.schema(
    [
        (name, {"BIGINT": pa.int64(), "BOOLEAN": pa.bool_()}.get(kind, pa.string()))
        for name, kind in zip(NAMES, TYPES, strict=True)
    ]
)
_MOMENT: Final = pa.schema([("since_us", pa.int64())])

# Bits say no more than modulo 62; where nearly all are set they say nothing.
_REPEATS: Final = f"""CASE WHEN family NOT IN ({quoted(ONCE_PER_SEQ)}) OR coalesce(bits, 0) = 0 THEN n ELSE
    greatest(0, n - CASE WHEN hi - lo < 62 OR bit_count(bits) < 57 THEN bit_count(bits) ELSE hi - lo + 1 END)
    + CASE WHEN bits & lag(bits) OVER who <> 0 AND lo <= lag(hi) OVER who AND lag(lo) OVER who <= hi
        THEN least(bit_count(bits & lag(bits) OVER who),
            least(hi, lag(hi) OVER who) - greatest(lo, lag(lo) OVER who) + 1) ELSE 0 END END"""

# Names, clients, channels and lines that may be repeats: of what has gained lines, and has enough or half of it.
_SUSPECTS: Final = f"""
WITH watched AS (
    SELECT client, channel, CASE WHEN answer IN ({quoted((*FAILURES, "web"))}) THEN '' ELSE node END AS place,
        CASE WHEN answer IN ({quoted(FAILURES)}) THEN 'failure' ELSE answer END AS family, bucket_us, n,
        seq_bits, seq_lo, seq_hi, seen_us
    FROM part WHERE answer IN ({quoted(WATCHED)}) AND client IS NOT NULL
    UNION ALL
    -- It may be a new name of a client that has failed before.
    SELECT network, channel, '', 'failure', min(bucket_us), sum(n), NULL, NULL, NULL, max(seen_us)
    FROM part WHERE answer IN ({quoted(FAILURES)}) AND named AND network IS NOT NULL
    GROUP BY answer, node, channel, client, network HAVING sum(n) <= {SELDOM}
),
named AS (
    SELECT *, concat_ws(chr(0), client, coalesce(channel, chr(1)), place, family) AS name
    FROM watched WHERE seen_us > (SELECT since_us FROM moment) - {FORGET_US}
),
buckets AS (
    SELECT name, family, bucket_us, any_value(client) AS client, any_value(channel) AS channel, sum(n) AS n,
        bit_or(seq_bits) AS bits, min(seq_lo) AS lo, max(seq_hi) AS hi
    FROM named WHERE name IN (SELECT name FROM named WHERE seen_us >= (SELECT since_us FROM moment))
    GROUP BY name, family, bucket_us
),
repeated AS (
    SELECT name, client, channel, {_REPEATS} AS hits FROM buckets
    WINDOW who AS (PARTITION BY name ORDER BY bucket_us)
)
SELECT name, any_value(client), any_value(channel), CAST(sum(hits) AS BIGINT) AS hits
FROM repeated GROUP BY name HAVING 2 * sum(hits) >= {{enough}}
UNION ALL
SELECT concat('node ', node), NULL, node, CAST(sum(n) AS BIGINT) FROM part
WHERE seen_us > (SELECT since_us FROM moment) - {FLEET_US} AND answer IN ({quoted((*FAILURES, "web"))}) AND named
GROUP BY node HAVING count(DISTINCT client) >= {{many}} AND sum(n) >= {{enough}}"""

_SEEN: Final = """
SELECT e.incident, max(p.seen_us)
FROM (SELECT incident, unnest(clients) AS client, first_us, last_us FROM episodes) e
    JOIN part p ON p.client = e.client AND p.last_us BETWEEN e.first_us AND e.last_us
GROUP BY e.incident"""

_KNOWN: Final = {"incident": "VARCHAR", "clients": "VARCHAR[]", "channels": "VARCHAR[]"} | dict.fromkeys(
    ("since_us", "until_us", "seq_lo", "seq_hi", "gap_us"), "BIGINT"
)

_ASKED: Final = f"""
WITH known AS (
    SELECT {", ".join(f"unnest(?::{kind}[]) AS {name}" for name, kind in _KNOWN.items())}
),
asked AS (
    SELECT incident, name AS client, channel, first_us, last_us, seen_us, until_us, gap_us
    FROM (SELECT *, unnest(list_distinct([client, network])) AS name FROM part) part
        JOIN (SELECT *, unnest(clients) AS name FROM known) known USING (name)
    WHERE last_us >= since_us AND (channel IN channels OR len(channels) = 0)
        AND (answer NOT IN ({quoted(ONCE_PER_SEQ)}) OR (part.seq_lo >= known.seq_lo AND part.seq_hi <= known.seq_hi))
),
starting AS (
    SELECT *, CASE WHEN first_us - max(last_us) OVER (who ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) <= gap_us
        THEN 0 ELSE 1 END AS starts
    FROM asked WINDOW who AS (PARTITION BY incident, client, channel ORDER BY first_us, last_us)
),
spans AS (
    SELECT *, sum(starts) OVER (PARTITION BY incident, client, channel ORDER BY first_us, last_us
        ROWS UNBOUNDED PRECEDING) AS span
    FROM starting
)
SELECT incident, max(seen_us)
FROM (
    SELECT incident, max(seen_us) AS seen_us FROM spans
    GROUP BY incident, client, channel, span, until_us, gap_us HAVING min(first_us) <= until_us + gap_us
)
GROUP BY incident"""


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


class Window:
    """The last minutes.

    Attributes:
        dropped: lines whose rows were dropped because there were too many.
        skew_s: servers whose lines are not of the moment in which they are read, and by how much, seconds.
        due: there may be an incident that is not known. warm: a client is about to have enough lines for one.
        many: one that has gained lines has enough.
        planned: the rules, for few rows.
    """

    def __init__(
        self, params: Params | None = None, clock: Callable[[], float] = time.monotonic, spill: Path | None = None
    ) -> None:
        """
        Args:
            params: thresholds; clock: seconds. spill: folder for what does not fit into memory.
        """
        self._params = params or Params()
        self._clock = clock
        self._rules = embedded.connect(0)
        self._rules.execute("PRAGMA enable_optimizer")
        self._rules.execute(f"SET memory_limit = '{MEMORY}'")
        if spill is not None:
            self._rules.execute(f"SET temp_directory = {text(str(spill))}")
        # To plan how to read a few rows best takes longer than to read them.
        self._few = self._rules.cursor()
        self._few.execute("PRAGMA disable_optimizer")
        self._part, self._moment = Feed(_SCHEMA), Feed(_MOMENT)
        self._rules.register("part", self._part)
        self._few.register("part", self._part)
        self._few.register("moment", self._moment)
        # Of what repeats, the first is none.
        self._enough = max(1, min(self._params.fast_hits, self._params.slow_hits) - 1)
        many = min(self._params.many_clients, self._params.herd_clients)
        self._few.execute(f"PREPARE suspects AS {_SUSPECTS.format(enough=self._enough, many=many)}")
        self.planned = planned(self._rules.cursor(), self._params)
        # Those that run the rules over many rows; each is closed then, which frees their tables.
        self._many = self._few
        self._tidied_us, self._fresh = 0, 0
        # How many lines each key had when the rules looked at it, and when that was.
        self._looked: dict[str, tuple[int, int]] = {}
        self._hot: dict[str, int] = {}
        self.dropped = 0
        self.skew_s: dict[str, float] = {}
        self.due = self.many = self.warm = False

    def close(self) -> None:
        """Frees the memory."""
        for connection in (self.planned.connection, self._few, self._rules):
            connection.close()

    def interrupt(self) -> None:
        """Ends what runs in another thread, which gets an error."""
        for connection in (self._rules, self._few, self._many, self.planned.connection):
            connection.interrupt()

    def restore(self, rows: pa.Table) -> None:
        """Brings rows back that an earlier run has kept."""
        if rows.schema.equals(_SCHEMA):
            self._part.batches += rows.to_batches()

    def add(self, rows: pa.Table, now_us: int, past_us: int | None = None) -> pa.Table:
        """Adds rows of the roll-up; returns them as they are to be kept (:meth:`restore`).

        Args:
            rows: with the columns of :mod:`~analytics.scan.rollup`, in any order.
            now_us: when their lines were read. past_us: since when these had waited for that, if they had: they count
                as read when they arrived, by their own clock, but not before. Microseconds since the epoch.
        """
        if "seen_us" in rows.column_names:
            kept = rows.select(NAMES).cast(_SCHEMA)
        else:
            since_us = now_us if past_us is None else past_us
            seen = [min(now_us, max(since_us, last_us or 0)) for last_us in rows["last_us"].to_pylist()]
            kept = rows.select(NAMES[:-1]).append_column("seen_us", int64s(seen)).cast(_SCHEMA)
        if past_us is None:
            self._note_clocks(rows, now_us, behind="seen_us" not in rows.column_names)
        self._fresh += rows.num_rows
        self._part.batches += kept.to_batches()
        return kept

    def _note_clocks(self, rows: pa.Table, now_us: int, *, behind: bool) -> None:
        """How far the newest line of each server is from now, also if it is behind; one among many says nothing."""
        newest: dict[str, list[int]] = defaultdict(list)
        for name, last_us in zip(rows["node"].to_pylist(), rows["last_us"].to_pylist(), strict=True):
            if name and last_us is not None:
                newest[name].append(last_us)
        for name, moments in newest.items():
            off_s = (sorted(moments)[len(moments) // 2] - now_us) / 1e6
            if (abs(off_s) if behind else off_s) >= SKEW_S:
                self.skew_s[name] = off_s
            else:
                self.skew_s.pop(name, None)

    # --- what is worth a look -----------------------------------------------------------------------------------------

    def look(self, told: Callable[[str | None, str | None], bool], since_us: int) -> None:
        """Looks at what was added, and sets the attributes: a necessary condition of the rules, in some of their time.

        The rules look only at keys that have enough lines (``buckets.sql``), and at seconds with enough clients
        (``fleets.sql``). A key is worth a look when it has these, and again when it has a quarter more.

        Args:
            told: whether a client's incident on a channel is open; without a client, that of a crowd on a server.
            since_us: rows that were read since then were added.
        """
        self._moment.batches = [pa.RecordBatch.from_arrays([int64s([since_us])], schema=_MOMENT)]
        self.warm = False
        for name, client, channel, hits in self._few.execute("EXECUTE suspects").fetchall():
            before = self._looked.get(name, (0, 0))[0]
            if 2 * hits < before:
                before, self._looked[name] = hits, (hits, since_us)
            self._hot[name] = hits
            self.many = self.many or hits >= self._enough
            self.warm = self.warm or self._enough / 2 <= hits < self._enough
            if hits >= max(self._enough, before * _GROWN):
                self.due = self.due or not told(client, channel)

    def looked(self, now_us: int) -> None:
        """The rules have looked at all that was added."""
        self._looked |= {name: (hits, now_us) for name, hits in self._hot.items()}
        self._hot.clear()
        self.due = self.many = False

    # --- rules --------------------------------------------------------------------------------------------------------

    def judge(self) -> list[Found]:
        """The incidents of the last minutes."""
        while (rows := sum(map(len, self._part.batches))) > FEW_ROWS:
            try:
                return self._judge_many()
            except duckdb.OutOfMemoryException:
                # They are judged without half of the rows, rather than not at all.
                most = self.rows().sort_by([("n", "descending")])
                self.dropped += sum(most["n"][rows // 2 :].to_pylist())
                self._part.batches = most.slice(0, rows // 2).to_batches()
        # To plan the rules takes longer than to run them, and they do not change.
        with self.planned.run(self._part.batches) as made:
            return _found(made)

    def _judge_many(self) -> list[Found]:
        with self._rules.cursor() as made:
            self._many = made
            made.register("part", self._part)
            made.execute(f"CREATE OR REPLACE TEMP TABLE rollup AS {merge_sql('part')}")
            embedded.reduce(made)
            engine.run(made, self._params)
            return _found(made)

    def asked(self, known: Sequence[tuple[Summary, Sequence[str], Sequence[str], int]]) -> dict[str, int]:
        """When the last request was read with which a client of an incident goes on, microseconds since the epoch.

        Args:
            known: incidents as they were found last; all clients, and all channels, of each; a longer pause than this
                is the end, microseconds.

        Returns:
            the moments by the incidents' ids, of those that go on.

        An incident goes on while a client gets no answer that helps it, of whatever kind, without a longer pause. The
        rules need more requests before they see that if the kind has changed (the channel has ended, then 404) or
        the rate has fallen.
        """
        if not known:
            return {}
        rows = [
            [one.id, list(clients), list(channels), one.since_us, one.until_us, one.seq_lo, one.seq_hi, gap_us]
            for one, clients, channels, gap_us in known
        ]
        columns = [list(column) for column in zip(*rows, strict=True)]
        return dict(self._rules.execute(_ASKED, columns).fetchall())

    def tidy(self, open_clients: Sequence[str], now_us: int) -> bool:
        """Adds up rows of the same key and drops the old ones, now and then.

        Args:
            open_clients: whose incidents are open.

        Returns:
            whether it was done: then :meth:`rows` stand for all that were kept before.
        """
        if now_us - self._tidied_us < TIDY_US and self._fresh < MAX_ROWS // 4:
            return False
        self._tidied_us, self._fresh = now_us, 0
        old, oldest, settled = now_us - round(WINDOW_S * 1e6), now_us - round(OPEN_S * 1e6), now_us - SETTLED_US
        once = f"answer = 'served' AND seen_us < {settled:d} AND n <= bit_count(seq_bits) AND seq_hi - seq_lo < 62"
        nobody = f"CASE WHEN {once} THEN NULL ELSE client END AS client, named AND NOT coalesce({once}, false) AS named"
        merged = merge_sql(f"(SELECT * REPLACE ({nobody}) FROM part)").replace(
            " FROM (", ", max(seen_us) AS seen_us FROM (", 1
        )
        self._rules.execute(
            f"""CREATE OR REPLACE TEMP TABLE tidy AS
            SELECT *, row_number() OVER (ORDER BY keep DESC, n DESC, seen_us DESC) AS place
            FROM (SELECT *, coalesce(answer = 'event' OR client IN (SELECT unnest(?::VARCHAR[])), false) AS keep
                FROM ({merged}))
            WHERE seen_us >= CASE WHEN keep THEN {oldest:d} ELSE {old:d} END""",
            [list(open_clients)],
        )
        sql = f"SELECT coalesce(sum(n), 0) FROM tidy WHERE place > {MAX_ROWS}"
        self.dropped += int(self._rules.execute(sql).fetchall()[0][0])
        left = self._rules.sql(f"SELECT {', '.join(NAMES)} FROM tidy WHERE place <= {MAX_ROWS}")
        self._part.batches = left.to_arrow_table().cast(_SCHEMA).to_batches()
        self._rules.execute("DROP TABLE tidy")
        self._looked = {name: looked for name, looked in self._looked.items() if now_us - looked[1] <= FORGET_US}
        return True

    def rows(self) -> pa.Table:
        """All rows, to be kept."""
        return pa.Table.from_batches(self._part.batches, _SCHEMA)


def planned(connection: duckdb.DuckDBPyConnection, params: Params) -> engine.Planned:
    """The rules over rows as a window keeps them, on a connection that nobody else uses."""
    return engine.Planned(connection, _SCHEMA, merge_sql("part"), params)


def _found(made: duckdb.DuckDBPyConnection) -> list[Found]:
    """The incidents that the rules have found."""
    slow = dict(made.execute("SELECT incident, bool_or(slow) FROM episodes GROUP BY incident").fetchall())
    seen = dict(made.execute(_SEEN).fetchall())
    return [Found(one, bool(slow.get(one.number)), seen.get(one.number)) for one in found(made)]
