"""One scan, one ``groupBy``: millions of lines become the few thousand rows that everything else is computed from.

Cost is that of parsing. It does not depend on how many clients there are, nor on one of them sending half of the lines
(partial aggregation happens before the shuffle). Nothing after this sees a raw line, and nothing before it sorts one.

Every measure is a number that two rows can be added up in, so that Spark aggregates them in place, with generated code:
sets are kept as bits of one integer, and a histogram as fifteen bits per class.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from tricklecast.analytics.answers import CODES, GRAINS, Answer, codes, from_code, upto
from tricklecast.analytics.durations import micros

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

KEY: Final = ("answer", "node", "channel", "release", "client", "net", "event", "bucket_us")
"""What one row of the roll-up stands for. ``client`` is null where :data:`analytics.answers.GRAINS` says
so, ``net`` for all but failures, and ``event`` for all but events."""

BITS: Final = 64
"""A set is kept as so many bits."""

SLOTS: Final = 64
"""Parts of a bucket in which arrivals are noted: of a second's bucket, 15.6 ms each."""

WAIT_CLASSES_US: Final = ((1_000, 4_000, 16_000, 64_000), (256_000, 1_000_000, 4_000_000, None))
"""Upper bounds of the waits counted in ``waits_quick`` and ``waits_slow``, microseconds; the last has none."""

WAIT_CLASS_BITS: Final = 15
"""Bits per class of waits: the histogram holds while a row has fewer than 2^15 lines."""

WAITED: Final = (Answer.SERVED, Answer.ZERO_BYTE, Answer.ENDED)
"""Answers whose waits are counted: those that a reader was waiting for."""


def roll_up(rows: DataFrame, also: Sequence[str] = ()) -> DataFrame:
    """Rows of :func:`analytics.normalise.normalise`, added up by :data:`KEY`.

    Args:
        also: further columns of ``rows`` to be added up by; a stream needs one that says when it can forget a row.

    Returns:
        per key:

        * ``n`` lines; ``first_us``, ``last_us``: their first and last arrival;
        * ``seq_lo``, ``seq_hi``, ``head_lo``, ``head_hi``: ranges of the seqs asked about, and of the channel's head;
        * ``seq_bits``: bit ``seq % 64`` for each seq; ``conn_bits``: one of 64 bits for each connection;
          ``slots``: the 64th parts of the bucket in which something arrived;
        * sums: ``bytes_in``, ``bytes_out``, ``wait_us``, ``dur_us``, ``guard_ms``; the largest ``retry_after_ms``;
        * counts of lines: ``retried`` (``attempt`` > 1), ``anonymous`` (no client), ``closed`` (``eos``);
        * ``present``: one bit for each of :data:`analytics.schema.EXPECTED` that occurred;
        * ``waits_quick``, ``waits_slow``: waits by :data:`WAIT_CLASSES_US`, the shortest in the lowest bits; null if
          there were too many;
        * ``id_xor``, ``id_bits``: of the lines' ids, for finding duplicates (:mod:`analytics.duplicates`).
    """
    offset = rows.withColumn("offset_us", F.expr(f"ts_us % {_bucket_width()}"))
    # By name, so that the division is done once.
    slot = f"cast(offset_us * {SLOTS} DIV {_bucket_width()} AS int)"
    placed = offset.withColumns({"bucket_us": F.expr("ts_us - offset_us"), "slot": F.expr(slot)})
    key = [name for name in KEY if name != "answer"]
    measures = [F.expr(f"{value} AS {name}") for name, value in _measures().items()]
    rolled = placed.groupBy("code", *key, *also).agg(*measures)
    return rolled.selectExpr(f"{from_code('code')} AS answer", *key, *also, *_measures())


def _measures() -> dict[str, str]:
    """The aggregates of a row, as SQL, by name."""
    quick, slow = (_waits(bounds) for bounds in _wait_bounds())
    return {
        "n": "count(1)",
        "first_us": "min(ts_us)",
        "last_us": "max(ts_us)",
        "seq_lo": "min(seq)",
        "seq_hi": "max(seq)",
        "seq_bits": f"bit_or({_bit('seq')})",
        "head_lo": "min(head)",
        "head_hi": "max(head)",
        "conn_bits": "bit_or(IF(conn IS NULL, NULL, shiftleft(1L, hash(conn))))",
        "slots": "bit_or(shiftleft(1L, slot))",
        "bytes_in": "try_sum(bytes_in)",
        "bytes_out": "try_sum(bytes_out)",
        "wait_us": "try_sum(wait_us)",
        "dur_us": "try_sum(dur_us)",
        "guard_ms": "try_sum(guard_ms)",
        "retry_after_ms": "max(retry_after_ms)",
        "retried": "sum(retried)",
        "anonymous": "sum(anonymous)",
        "closed": "sum(closed)",
        "present": "bit_or(present)",
        "waits_quick": f"try_sum({quick})",
        "waits_slow": f"try_sum({slow})",
        "id_xor": "bit_xor(id)",
        "id_bits": f"bit_or({_bit('id')})",
    }


def _bit(value: str) -> str:
    """One of 64 bits for an integer. Their union counts distinct values, roughly (linear counting, Whang 1990)."""
    # Not pmod: its checks are so much code that Java would run the whole aggregation interpreted, at a third of the
    # speed. A shift takes its distance modulo 64 by itself.
    return f"shiftleft(1L, cast({value} & {BITS - 1} AS int))"


def _wait_bounds() -> tuple[tuple[tuple[int, int | None], ...], ...]:
    """Per packed histogram: lower and upper bound of each class, microseconds."""
    quick, slow = WAIT_CLASSES_US
    bounds = (0, *quick, *slow)
    pairs = tuple((int(low or 0), high) for low, high in pairwise(bounds))
    return pairs[: len(quick)], pairs[len(quick) :]


def _waits(bounds: tuple[tuple[int, int | None], ...]) -> str:
    """What one line adds to a packed histogram."""
    cases = []
    for place, (low, high) in enumerate(bounds):
        inside = f"wait_us >= {low}" + ("" if high is None else f" AND wait_us < {high}")
        cases.append(f"WHEN {inside} THEN {1 << WAIT_CLASS_BITS * place}L")
    return f"IF(code IN ({codes(WAITED)}), CASE {' '.join(cases)} END, NULL)"


def _bucket_width() -> str:
    """The width of a row's bucket, microseconds, as SQL."""
    narrow = [kind for kind, grain in GRAINS.items() if grain.bucket_s == 1 and kind is not Answer.EVENT]
    post, wide = micros(GRAINS[Answer.POST].bucket_s), micros(GRAINS[Answer.SERVED].bucket_s)
    return f"""CASE WHEN {upto(narrow)} OR code = {CODES[Answer.EVENT]} THEN {micros(1)}L
        WHEN code = {CODES[Answer.POST]} THEN {post}L ELSE {wide}L END"""


def events_of(rollup: DataFrame) -> DataFrame:
    """The lifecycle events: ``node``, ``channel``, ``event``, ``ts_us``."""
    happened = rollup.where(f"answer = '{Answer.EVENT}'")
    return happened.selectExpr("node", "channel", "event", "first_us AS ts_us")
