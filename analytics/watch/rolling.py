"""Lines of followed logs to rows of the roll-up: the report's SQL, planned once for each format.

All lines of one format that were read at one look are one table to DuckDB, whichever logs they are of. It is a stream
that Python hands over (:class:`~analytics.scan.embedded.Feed`): nothing is stored, and statements stay as they were
prepared. None has a parameter, since DuckDB would plan it anew each time.

A request that stands in two logs counts once, as in the report: the n-th line with the same id, time, method, path,
status and client in one log is the n-th one in the other. For that the ids of the last minutes are kept, if there are
several logs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types

from tricklecast.analytics.lines import Format, Reading
from tricklecast.analytics.lines.files import line_batch, line_schema, node_of
from tricklecast.analytics.lines.reading import selected
from tricklecast.analytics.lines.records import OTHER
from tricklecast.analytics.lines.wrapping import Unwrapper
from tricklecast.analytics.scan import embedded
from tricklecast.analytics.scan.embedded import Feed, int64s
from tricklecast.analytics.scan.normalise import COLUMNS, normalise_sql
from tricklecast.analytics.scan.rollup import roll_up_sql
from tricklecast.analytics.watch.followed import Piece

MAX_LOGS: Final = 10_000
"""Logs of which it is remembered how a line of theirs began, and whether one was ever understood."""

MAX_FORMATS: Final = 100
"""Formats whose statements are kept."""

MAX_REQUESTS: Final = 500_000
"""Requests whose ids are kept, the newest ones: one that comes in another log after this many others counts twice."""

_SAME: Final = (
    "hash(request, ts_us, method, path, status, client) AS same, hash((SELECT paths FROM followed)[file + 1]) AS log"
)

# "place": how many lines a log has had that are the same, with this one.
_DOUBLES: Final = f"""
WITH fresh AS (
    SELECT {_SAME}, no FROM parsed WHERE request IS NOT NULL AND kind IS NOT NULL
),
lines AS (
    SELECT same, log, no, 1 AS n, true AS fresh FROM fresh
    UNION ALL
    SELECT same, log, -1, n, false FROM request WHERE same IN (SELECT same FROM fresh)
)
SELECT no FROM (
    SELECT *, max(CASE WHEN NOT fresh THEN place END) OVER (PARTITION BY same) AS known,
        row_number() OVER (PARTITION BY same, fresh, place ORDER BY log) AS copy
    FROM (SELECT *, sum(n) OVER (PARTITION BY same, log ORDER BY no) AS place FROM lines)
)
WHERE fresh AND (place <= known OR copy > 1)"""

_KEEP: Final = f"""
INSERT INTO request
SELECT ?, {_SAME}, count(*) FROM parsed WHERE request IS NOT NULL AND kind IS NOT NULL GROUP BY ALL"""

_COLUMNS: Final = ", ".join(name for name in COLUMNS if name != "kind")
_TYPES: Final = {"BIGINT": pa.int64(), "INTEGER": pa.int32(), "VARCHAR": pa.string(), "BOOLEAN": pa.bool_()}
_PARSED: Final = pa.schema(
    [("file", pa.int32()), ("no", pa.int64()), ("kind", pa.string())]
    + [(name, _TYPES[kind]) for name, kind in COLUMNS.items() if name != "kind"]
)
_LOGS: Final = pa.schema([("nodes", pa.list_(pa.string())), ("paths", pa.list_(pa.string()))])


@dataclass(slots=True)
class Rolled:
    """The outcome of reading some lines.

    Attributes:
        rows: tables of the roll-up. lines: how many lines; bad: how many of them could not be read.
        doubled: how many were left out, because another log has them too.
        strange: logs of which none of enough lines was understood, and no earlier one.
    """

    rows: list[pa.Table] = field(default_factory=list)
    lines: int = 0
    bad: int = 0
    doubled: int = 0
    strange: list[tuple[Piece, int]] = field(default_factory=list)


class Roller:
    """Rolls up lines, whatever formats they are of."""

    def __init__(self, reading: Reading) -> None:
        """
        Args:
            reading: how lines are read.
        """
        self._reading = reading
        self._con = con = embedded.connect(0)
        self._raw, self._parsed, self._logs = Feed(line_schema()), Feed(_PARSED), Feed(_LOGS)
        con.register("raw_line", self._raw)
        con.register("parsed", self._parsed)
        con.register("followed", self._logs)
        con.execute("CREATE TABLE request (turn BIGINT, same UBIGINT, log UBIGINT, n BIGINT)")
        rows = normalise_sql().replace("FROM line\n", "FROM parsed line\n")
        con.execute(f"PREPARE roll AS {roll_up_sql(f'({rows}) rows_')}")
        con.execute(f"PREPARE doubles AS {_DOUBLES}")
        self._formats: dict[object, str] = {}
        self._planned = self._turn = self._kept = 0
        self._unwrappers: dict[str, Unwrapper] = {}
        # Lines of each log of which nothing is understood so far; -1 if something is.
        self._unread: dict[str, int] = {}

    def close(self) -> None:
        """Frees the memory."""
        self._con.close()

    def interrupt(self) -> None:
        """Ends what runs in another thread, which gets an error."""
        self._con.interrupt()

    def roll(self, pieces: Sequence[Piece], *, several: bool = True) -> Rolled:
        """Adds up lines; several: there is more than one log, and a request may stand in two."""
        rolled = Rolled()
        for form, alike in _by_format(pieces):
            parsed = self._parse(form, alike, [self._unwrapped(piece) for piece in alike])
            rolled.lines += parsed.num_rows
            rolled.bad += parsed["kind"].null_count
            self._check(alike, parsed["kind"].null_count, rolled)
            if several and parsed["request"].null_count < parsed.num_rows:
                doubles = self._doubles()
                rolled.doubled += len(doubles)
                if doubles:
                    fresh = int64s([no not in doubles for no in parsed["no"].to_pylist()])
                    parsed = parsed.filter(fresh.cast(pa.bool_()))
                    self._parsed.batches = parsed.to_batches()
            rolled.rows.append(self._con.sql("EXECUTE roll").to_arrow_table())
        self._raw.batches, self._parsed.batches = [], []
        return rolled

    def times(self, pieces: Sequence[Piece]) -> list[int | None]:
        """When the lines of each piece arrived, in the median; ``None`` if that cannot be told."""
        found: dict[int, int | None] = {}
        for form, alike in _by_format(pieces):
            self._parse(form, alike, [Unwrapper(form.wrapping).feed(piece.block) for piece in alike])
            sql = "SELECT file, quantile_disc(ts_us, 0.5) FROM parsed GROUP BY file"
            found |= {id(alike[file]): at_us for file, at_us in self._con.execute(sql).fetchall()}
        return [found.get(id(piece)) for piece in pieces]

    def _unwrapped(self, piece: Piece) -> bytes:
        if not piece.form.wrapping:
            return piece.block
        if len(self._unwrappers) >= MAX_LOGS:
            self._unwrappers.pop(next(iter(self._unwrappers)))
        return self._unwrappers.setdefault(piece.path, Unwrapper(piece.form.wrapping)).feed(piece.block)

    def _parse(self, form: Format, pieces: Sequence[Piece], blocks: Sequence[bytes]) -> pa.Table:
        """The lines of pieces of one format, which ``parsed`` are from now on."""
        batches, no = [], 1
        for file, block in enumerate(blocks):
            batches.append(line_batch(block, file, no))
            no += len(batches[-1])
        self._raw.batches = batches
        logs = [[node_of(piece.path) for piece in pieces], [piece.path for piece in pieces]]
        told = self._con.sql("SELECT ?::VARCHAR[] AS nodes, ?::VARCHAR[] AS paths", params=logs)
        self._logs.batches = told.to_arrow_table().cast(_LOGS).to_batches()
        table = self._con.sql(f"EXECUTE {self._statement(form)}").to_arrow_table().cast(_PARSED)
        self._parsed.batches = table.to_batches()
        return table

    def _statement(self, form: Format) -> str:
        """The name of the statement that parses lines of a format."""
        key = _key(form)
        if key not in self._formats:
            if len(self._formats) == MAX_FORMATS:
                self._con.execute(f"DEALLOCATE {self._formats.pop(next(iter(self._formats)))}")
            node = "(SELECT nodes FROM followed)[file + 1]"
            select = selected(form, self._reading, "SELECT file, no, line FROM raw_line", node)
            self._planned += 1
            self._formats[key] = f"parse_{self._planned}"
            self._con.execute(
                f"PREPARE {self._formats[key]} AS SELECT file, no, CASE WHEN bad IS NULL THEN kind END AS kind,"
                f" {_COLUMNS} FROM ({select}) chunk WHERE bad IS NULL OR bad <> '{OTHER}'"
            )
        return self._formats[key]

    def _check(self, pieces: Sequence[Piece], bad: int, rolled: Rolled) -> None:
        """Notes the logs of which nothing is understood."""
        unknown = [piece for piece in pieces if self._unread.get(piece.path, 0) >= 0]
        if not unknown:
            return
        while len(self._unread) > MAX_LOGS:
            self._unread.pop(next(iter(self._unread)))
        counts = dict.fromkeys(range(len(pieces)), (0, 1))
        if bad:
            sql = "SELECT file, count(*), count(kind) FROM parsed GROUP BY file"
            counts |= {file: (lines, good) for file, lines, good in self._con.execute(sql).fetchall()}
        for file, piece in enumerate(pieces):
            lines, good = counts[file]
            before = self._unread.get(piece.path, 0)
            self._unread[piece.path] = -1 if good or before < 0 else before + lines
            if not good and before >= 0:
                rolled.strange.append((piece, before + lines))

    def _doubles(self) -> set[int]:
        """Numbers of the lines that another log has had; keeps the ids of all of them."""
        doubles = {no for (no,) in self._con.execute("EXECUTE doubles").fetchall()}
        self._turn += 1
        kept = self._con.execute(_KEEP, [self._turn]).fetchall()
        self._kept += kept[0][0]
        if self._kept > MAX_REQUESTS:
            self._con.execute("""CREATE OR REPLACE TABLE request AS SELECT * FROM request
                WHERE turn > (SELECT quantile_disc(turn, 0.5) FROM request)""")
            ((self._kept,),) = self._con.execute("SELECT count(*) FROM request").fetchall()
        return doubles


def _key(form: Format) -> object:
    fields = form.fields and (form.fields.columns, tuple(form.fields.fields.items()))
    return (form.name, fields, form.present, form.quoted, form.wrapping)


def _by_format(pieces: Sequence[Piece]) -> list[tuple[Format, list[Piece]]]:
    groups: dict[object, tuple[Format, list[Piece]]] = {}
    for piece in pieces:
        groups.setdefault(_key(piece.form), (piece.form, []))[1].append(piece)
    return list(groups.values())
