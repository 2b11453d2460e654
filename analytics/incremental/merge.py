"""Adding up rows of roll-ups that were made apart: the result is that of one roll-up of all lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from tricklecast.analytics.rollup import KEY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MEASURES: Final = {
    "n": "sum",
    "first_us": "min",
    "last_us": "max",
    "seq_lo": "min",
    "seq_hi": "max",
    "seq_bits": "bit_or",
    "head_lo": "min",
    "head_hi": "max",
    "conn_bits": "bit_or",
    "slots": "bit_or",
    "bytes_in": "try_sum",
    "bytes_out": "try_sum",
    "wait_us": "try_sum",
    "dur_us": "try_sum",
    "guard_ms": "try_sum",
    "retry_after_ms": "max",
    "retried": "sum",
    "anonymous": "sum",
    "closed": "sum",
    "present": "bit_or",
    "waits_quick": "try_sum",
    "waits_slow": "try_sum",
    "id_xor": "bit_xor",
    "id_bits": "bit_or",
}
"""How each measure of :func:`analytics.rollup.roll_up` is added up: a function of Spark."""


def merged(rollup: DataFrame) -> DataFrame:
    """One row per :data:`analytics.rollup.KEY`, of rows that may share theirs."""
    return rollup.groupBy(*KEY).agg(*(getattr(F, add_up)(name).alias(name) for name, add_up in MEASURES.items()))
