"""Lines that a log has more than once, as when it was shipped twice: suspected from the roll-up, then left out.

To look for them in the lines is the most expensive plan there is; so that is done only if the roll-up shows traces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from tricklecast.analytics.rollup import BITS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SIGMAS: Final = 6.0
"""So many standard deviations from what chance would have it are no chance (one log in a billion)."""


def _never() -> bool:
    return False


def traces() -> dict[str, str]:
    """What :func:`suspected` needs to know of a roll-up, as SQL to be added up, by name.

    A certain trace: the ids of an even number of lines cancel each other out. And over all rows: the ids of distinct
    lines fill as many of 64 bits as chance would have it, and three and more of them fill one (they are piled up) as
    seldom; copies fill fewer, and one more often. A few copies among many lines are none of these.
    """
    empty, two_empty = f"power(1 - 1D / {BITS}, n)", f"power(1 - 2D / {BITS}, n)"
    # Occupancy: n balls into m bins leave m * (1 - 1/m)^n of them empty, with this variance.
    variance = f"{BITS} * ({BITS} - 1) * {two_empty} + {BITS} * {empty} - {BITS} * {BITS} * {empty} * {empty}"
    # Where every line is known by its connection: others have no id, and would look like copies.
    known = "id_bits IS NOT NULL AND conn_bits IS NOT NULL AND n > 1"
    counts = {
        "certain": "IF(n % 2 = 0 AND id_xor = 0, 1, 0)",
        "piled": "IF(n >= 3 AND bit_count(id_bits) = 1, 1, 0)",
        "piled_by_chance": f"IF(n >= 3, power({BITS}D, 1 - n), 0)",
        "ids": "bit_count(id_bits)",
        "with_id": "n",
        "expected": f"{BITS} * (1 - {empty})",
        "variance": variance,
    }
    return {name: f"sum(IF({known}, {count}, 0))" for name, count in counts.items()}


@dataclass(frozen=True, slots=True)
class Traces:
    """The sums of :func:`traces` over a roll-up."""

    certain: int
    piled: int
    piled_by_chance: float
    ids: int
    with_id: int
    expected: float
    variance: float

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> Traces:
        """Those of the whole, from those of its parts."""
        rows = list(rows)
        return cls(**{name: sum(row[name] or 0 for row in rows) for name in traces()})


def suspected(found: Traces, alike: Callable[[], bool] = _never) -> bool:
    """Whether lines seem to be there more than once.

    Args:
        alike: whether some lines are the same to the byte; asked only if the roll-up leaves it open.
    """
    if found.certain or found.piled > found.piled_by_chance + SIGMAS * found.piled_by_chance**0.5:
        return True
    if found.ids < found.expected - SIGMAS * (found.variance + 1) ** 0.5:
        return True
    # As many bits as lines: no two of them have one id.
    return found.ids < found.with_id and alike()


def traces_in(rollup: DataFrame) -> Traces:
    """The traces in a roll-up."""
    return Traces.of(
        row.asDict() for row in rollup.selectExpr(*(f"{of} AS {name}" for name, of in traces().items())).collect()
    )


def once(rows: DataFrame, owner: str | None = None) -> DataFrame:
    """Every line once. Lines that the log cannot tell apart (no connection) are left as they are.

    Args:
        rows: :func:`analytics.normalise.normalise`.
        owner: a column that says where a line is from. It does not tell lines apart: the smallest one has them.
    """
    alone = F.expr("IF(id IS NULL, monotonically_increasing_id(), -1L)")
    told = rows.withColumn("alone", alone)
    if owner is None:
        return told.dropDuplicates().drop("alone")
    same = [name for name in told.columns if name != owner]
    return told.groupBy(*same).agg(F.min(owner).alias(owner)).drop("alone")
