"""The roll-up: one ``GROUP BY`` over all lines. A row is what one client got of one kind in one bucket of time.

A bucket is a second; 10 s for posts and a minute for what is served and for all else. The table :data:`MEASURES` is
the only place that knows what is added up: the ``GROUP BY``, the merge of partial roll-ups and the schema's version
follow from it. Every measure's aggregate is also how two of its values are merged.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Literal

KEY: Final = ("answer", "node", "channel", "client", "named", "event", "bucket_us")


@dataclass(frozen=True, slots=True)
class Measure:
    """One column of the roll-up.

    Attributes:
        name: of the column. way: the aggregate, of lines and of partial roll-ups.
        of: what it aggregates, SQL over ``normalise.sql``.
        type: of the result.
    """

    name: str
    way: Literal["sum", "min", "max", "bit_or"]
    of: str
    type: str = "BIGINT"


BITS: Final = 62
"""Bits of a set: a signed 64-bit integer holds them in both engines without an overflow."""


def _bit(value: str) -> str:
    return f"CAST(1 AS BIGINT) << CAST(({value}) % {BITS} AS INT)"


MEASURES: Final = (
    Measure("n", "sum", "1"),
    Measure("first_us", "min", "ts_us"),
    Measure("last_us", "max", "ts_us"),
    Measure("seq_lo", "min", "seq"),
    Measure("seq_hi", "max", "seq"),
    # One bit of 62 for each seq, and for each connection: a union says how many there were (linear counting).
    Measure("seq_bits", "bit_or", _bit("seq")),
    Measure("conn_bits", "bit_or", _bit("conn & 4611686018427387903")),
    Measure("head_lo", "min", "head"),
    Measure("head_hi", "max", "head"),
    # In which seconds of its minute something arrived.
    Measure("slots", "bit_or", _bit("ts_us // 1000000 % 60")),
    Measure("bytes_in", "sum", "bytes_in"),
    Measure("bytes_out", "sum", "bytes_out"),
    Measure("dur_us", "sum", "dur_us"),
    Measure("guard_ms", "sum", "guard_ms"),
    Measure("retry_after_ms", "max", "retry_after_ms"),
    Measure("retried", "sum", "retried"),
    Measure("closed", "sum", "closed"),
    # A request that waited for its segment asked for it for the first time.
    Measure("waited", "sum", "CASE WHEN wait_us >= 256000 THEN 1 ELSE 0 END"),
    Measure("kept", "sum", "kept"),
    Measure("kept_slow", "sum", "CASE WHEN kept = 1 AND wait_us >= 256000 THEN 1 ELSE 0 END"),
    Measure("status_lo", "min", "status"),
    Measure("status_hi", "max", "status"),
    Measure("reason", "max", "reason", "VARCHAR"),
    Measure("release_lo", "min", "release", "VARCHAR"),
    Measure("release_hi", "max", "release", "VARCHAR"),
    Measure("ua", "max", "ua", "VARCHAR"),
    Measure("request", "min", "request", "VARCHAR"),
    Measure("network", "min", "network", "VARCHAR"),
    Measure("blind", "max", "blind", "VARCHAR"),
)
"""All measures, in the order of the columns."""

VERSION: Final = sha256(repr((KEY, MEASURES)).encode()).hexdigest()[:12]
"""Stored with a roll-up: one of another version cannot be merged and is made anew."""


def roll_up_sql(rows: str) -> str:
    """Adds up the rows of a relation with the columns of ``normalise.sql``."""
    measures = ", ".join(f"CAST({one.way}({one.of}) AS {one.type}) AS {one.name}" for one in MEASURES)
    return f"SELECT {', '.join(KEY)}, {measures} FROM {rows} GROUP BY {', '.join(KEY)}"


def merge_sql(rollups: str) -> str:
    """Adds up the rows of several roll-ups."""
    return f"SELECT {', '.join(KEY)}, {merged_measures()} FROM {rollups} GROUP BY {', '.join(KEY)}"


def merged_measures() -> str:
    """The columns of :data:`MEASURES`, each added up over rows of a roll-up."""
    return ", ".join(f"CAST({one.way}({one.name}) AS {one.type}) AS {one.name}" for one in MEASURES)
