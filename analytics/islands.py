"""Islands in time: what one client kept getting, as one row per uninterrupted stretch.

The key has no seq: a client that sweeps upwards through the seqs would escape it. Nor has it a release, which is the
client's own word. Failures share one key, so that a client cannot stay below every threshold by collecting 404, 470 and
503 in turn, and their key has no node, so that it cannot hide behind a load balancer; where one kind of failure follows
another, that is a new island. Seqs mean something on one node only: the other answers are kept apart by node.

The queries of this package are SQL texts: a chain of column expressions is sent to Spark one by one, and that takes
longer than the query itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tricklecast.analytics.answers import COUNTED, FAILURES, GRAINS, ONCE_PER_SEQ, REPEATABLE, WATCHED, Answer, quoted
from tricklecast.analytics.durations import micros
from tricklecast.analytics.own_time import own_us_sql
from tricklecast.analytics.params import StormParams
from tricklecast.analytics.query import query
from tricklecast.analytics.repeats import distinct_seqs_sql, n_shared_sql, shared_sql, stretch_hits_sql, waited_sql
from tricklecast.analytics.rollup import SLOTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WHO: Final = "client, named, channel, place, family"
"""Whose island: ``client`` (its network where the log has no client, which ``named`` tells), ``channel``, ``place``
(the node, or null for failures) and ``family`` (``failure`` or the kind of answer)."""

KEY: Final = f"{WHO}, chain"
"""The same, and in which chain: between two of those there is a pause that no episode spans. Nothing is told about a
bucket from another chain than its own."""

FAILURE: Final = "failure"

NEIGHBOURS: Final = 4
"""One kind of failure follows another, rather than taking turns with it, if for so many buckets neither comes back."""

_SUMS: Final = ("n", "bytes_out", "dur_us", "guard_ms", "closed", "waited", *(f"n_{kind}" for kind in FAILURES))
_LOWEST: Final = ("first_us", "seq_lo", "head_lo", "node_lo", "release_lo")
_HIGHEST: Final = ("last_us", "seq_hi", "head_hi", "node_hi", "release_hi", "retry_after_ms")
_SETS: Final = ("conn_bits", "node_bits")

_ALONG: Final = (
    *("answer", "node", "release", "seq_lo", "seq_hi", "seq_bits", "head_lo", "head_hi", "conn_bits", "slots"),
    *("bytes_out", "dur_us", "guard_ms", "retry_after_ms", "closed", "waits_slow"),
)
"""Columns of the roll-up that nobody looks at before it is known which rows could be part of a storm."""


def islands(rollup: DataFrame, params: StormParams) -> DataFrame:
    """Stretches of one family of answers to one client, with pauses of at most ``gap_s``, from the roll-up.

    Returns:
        per :data:`KEY` and island: ``answer`` (the commonest), the roll-up's figures added up, ``hits`` (lines that
        count), ``seqs`` (distinct ones, of answers that are right once per seq), ``peak_rps``, ``coarse`` (the number
        of the island that it is part of if pauses of ``slow_gap_s`` are allowed), ``node`` and ``release`` (null if
        there were several).
    """
    buckets = f"SELECT {KEY}, bucket_us, {_by_bucket()} FROM ({_chained(_watched(), params)}) GROUP BY {KEY}, bucket_us"
    numbered = _numbered(_rated(_repeating(buckets, params)), params)
    found = f"SELECT {KEY}, coarse, island, {added_up()} FROM ({numbered}) GROUP BY {KEY}, coarse, island"
    return query(finished(found, params), rollup=rollup)


def _watched() -> str:
    """The rows that can be part of a storm, with their key; all rows of a key in one place, so that nothing has to be
    moved until islands leave their key."""
    failed = f"answer IN ({quoted(FAILURES)})"
    # What only those are asked for that are left in the end goes along in one piece: moving a row costs so much per
    # column. And a segment is served many times more often than anything else: what nobody repeats need not be sorted.
    return f"""
        SELECT
            coalesce(client, net) AS client, client IS NOT NULL AS named, channel, IF({failed}, NULL, node) AS place,
            IF({failed}, '{FAILURE}', answer) AS family, bucket_us, n, first_us, last_us,
            struct({", ".join(_ALONG)}) AS along
        FROM {{rollup}}
        WHERE answer IN ({quoted(WATCHED)}) AND coalesce(client, net) IS NOT NULL
            AND (answer <> '{Answer.SERVED}' OR n > {distinct_seqs_sql()})"""


def _chained(rows: str, params: StormParams) -> str:
    """Adds ``chain``, and drops chains with fewer lines than any storm: most of what fails does so now and then."""
    # There may be several rows of a bucket: the earliest tells the pause before all of them.
    near = f"PARTITION BY {WHO} ORDER BY bucket_us, first_us"
    before = f"OVER ({near} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
    follows = (
        f"first_us - max(last_us) {before} <= {micros(params.slow_gap_s)} OR bucket_us = lag(bucket_us) OVER ({near})"
    )
    starting = f"SELECT *, IF({follows}, 0, 1) AS starts FROM ({rows})"
    chained = f"""
        SELECT * EXCEPT (starts), sum(starts) OVER ({near} ROWS UNBOUNDED PRECEDING) AS chain FROM ({starting})"""
    counted = f"SELECT *, sum(n) OVER (PARTITION BY {KEY}) AS lines FROM ({chained})"
    fewest = min(params.warn_hits, params.warn_hits_alone, params.critical_hits, params.critical_hits_alone)
    return f"SELECT * EXCEPT (along, lines), along.* FROM ({counted}) WHERE lines >= {fewest}"


def _by_bucket() -> str:
    """What is made of all rows of a bucket, with the names that it has from then on."""
    made = {
        "waited": waited_sql(),
        "node_lo": "node",
        "node_hi": "node",
        "node_bits": "shiftleft(1L, cast(pmod(hash(node), 64) AS int))",
        "release_lo": "release",
        "release_hi": "release",
    } | {f"n_{kind}": f"IF(answer = '{kind}', n, 0)" for kind in FAILURES}
    ways = {"try_sum": _SUMS, "min": _LOWEST, "max": _HIGHEST, "bit_or": (*_SETS, "seq_bits", "slots")}
    return ", ".join(f"{way}({made.get(name, name)}) AS {name}" for way, names in ways.items() for name in names)


def _repeating(buckets: str, params: StormParams) -> str:
    """Adds ``seqs`` (distinct ones that the bucket before did not have) and drops what repeats nothing."""
    sides = ", ".join(
        f"{function}({name}) OVER near AS {name}_{side}"
        for side, function in (("before", "lag"), ("after", "lead"))
        for name in ("seq_bits", "seq_lo", "seq_hi", "first_us", "last_us")
    )
    gap = micros(params.gap_s)
    again = f"coalesce({shared_sql('before')} AND first_us - last_us_before <= {gap}, false)"
    next_again = f"coalesce({shared_sql('after')} AND first_us_after - last_us <= {gap}, false)"
    known = f"IF({again}, {n_shared_sql('before')}, 0)"
    return f"""
        SELECT *, greatest(0L, distinct_seqs - {known}) AS seqs
        FROM (SELECT *, {sides}, IF(family IN ({quoted(ONCE_PER_SEQ)}), {distinct_seqs_sql()}, 0L) AS distinct_seqs
            FROM (SELECT *, family AS answer FROM ({buckets}))
            WINDOW near AS (PARTITION BY {KEY} ORDER BY bucket_us))
        WHERE family NOT IN ({quoted(ONCE_PER_SEQ)}) OR n > distinct_seqs OR {again} OR {next_again}"""


def _rated(rows: str) -> str:
    """Adds what the islands are told from: the pause before a bucket, the rate around it, the failures near it."""
    present = " | ".join(f"IF(n_{kind} > 0, {1 << place}, 0)" for place, kind in enumerate(FAILURES))
    # The other families have one kind of answer, and so no change.
    kinds = f"IF(family = '{FAILURE}', {present}, 1)"
    near = f"PARTITION BY {KEY} ORDER BY bucket_us"
    return f"""
        SELECT *, first_us - lag(last_us) OVER near AS pause, lag(kinds) OVER near AS kinds_last,
            lag(row_hits) OVER near AS hits_last, {_pair_us()} AS pair_us,
            bit_or(kinds) OVER ({near} ROWS BETWEEN {NEIGHBOURS} PRECEDING AND 1 PRECEDING) AS kinds_before,
            bit_or(kinds) OVER ({near} ROWS BETWEEN 1 FOLLOWING AND {NEIGHBOURS} FOLLOWING) AS kinds_after
        FROM (SELECT *, {kinds} AS kinds, n - greatest(0L, seqs - 1) AS row_hits FROM ({rows}))
        WINDOW near AS ({near})"""


def _pair_us() -> str:
    """The own time of a bucket and the one before, microseconds."""
    holds = "coalesce(guard_ms, 0L) + coalesce(lag(guard_ms) OVER near, 0L)"
    return own_us_sql("(last_us - lag(first_us) OVER near)", f"({holds})", "(n + lag(n) OVER near)")


def _numbered(rows: str, params: StormParams) -> str:
    """Numbers the islands, fine and coarse, and adds ``peak_rps`` and ``busy_s`` of each bucket."""
    another = "coalesce((kinds & kinds_before) = 0 AND coalesce(kinds_last & kinds_after, 0) = 0, false)"
    return f"""
        SELECT *, sum(starts) OVER near AS island, sum(starts_coarse) OVER near AS coarse
        FROM (SELECT *, {_rate()} AS peak_rps, {_busy()} AS busy_s,
                IF(pause <= {micros(params.gap_s)} AND NOT {another}, 0, 1) AS starts,
                IF(pause <= {micros(params.slow_gap_s)} AND NOT {another}, 0, 1) AS starts_coarse
            FROM ({rows}))
        WINDOW near AS (PARTITION BY {KEY} ORDER BY bucket_us)"""


def _rate() -> str:
    """Hits per second of a bucket, or of it and the one before: a burst need not keep to the borders of seconds."""
    alone = f"row_hits / greatest(1D, {own_us_sql('(last_us - first_us)', 'guard_ms', 'n')} / 1e6)"
    pair = "(row_hits + hits_last) / greatest(1D, pair_us / 1e6)"
    # Buckets of posts and segments are long: what they hold need not have come at once.
    return f"greatest({alone}, IF(family IN ({quoted(REPEATABLE)}), NULL, {pair}))"


def _busy() -> str:
    """Seconds of a bucket in which something arrived, about."""
    per_slot = GRAINS[Answer.SERVED].bucket_s / SLOTS
    return f"IF(family = '{Answer.SERVED}', bit_count(slots) * {per_slot}D, 1D)"


def added_up() -> str:
    """What is added up, ranged over or united whenever islands are put together, as SQL."""
    sums = [f"try_sum({name}) AS {name}" for name in (*_SUMS, "seqs", "busy_s")]
    lowest = [f"min({name}) AS {name}" for name in _LOWEST]
    highest = [f"max({name}) AS {name}" for name in (*_HIGHEST, "peak_rps")]
    return ", ".join(sums + lowest + highest + [f"bit_or({name}) AS {name}" for name in _SETS])


def finished(found: str, params: StormParams) -> str:
    """Adds what follows from the sums: ``answer``, ``hits``, ``node``, ``release``, ``duration_s``, ``own_s`` (that
    without the storm guard's holds), ``mean_rps`` and ``gap_ms`` (the mean pause), both of the own time."""
    kinds = ", ".join(f"named_struct('n', n_{kind}, 'kind', '{kind}')" for kind in FAILURES)
    return f"""
        SELECT *, hits / greatest(1D, own_s) AS mean_rps, IF(n > 1, own_s * 1000 / (n - 1), NULL) AS gap_ms
        FROM (SELECT *, {stretch_hits_sql(params)} AS hits
            FROM (SELECT *, IF(family = '{FAILURE}', array_max(array({kinds})).kind, family) AS answer,
                    IF(node_lo = node_hi, node_hi, NULL) AS node,
                    IF(release_lo = release_hi, release_hi, NULL) AS release,
                    (last_us - first_us) / 1e6 AS duration_s,
                    {own_us_sql("(last_us - first_us)", "guard_ms", "n")} / 1e6 AS own_s
                FROM ({found})))"""


assert set(COUNTED) | set(ONCE_PER_SEQ) == set(WATCHED), "an answer either counts, or counts if it is repeated"
