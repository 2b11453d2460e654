"""One client under many names: each request with another key, from one network, at a pace that only one clock keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tricklecast.analytics.answers import FAILURES, quoted
from tricklecast.analytics.durations import micros
from tricklecast.analytics.fleet import BOTH, MANY
from tricklecast.analytics.params import StormParams
from tricklecast.analytics.query import query
from tricklecast.analytics.rollup import SLOTS
from tricklecast.analytics.severity import Severity

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

EVEN: Final = 0.5
"""How much of the way from chance (0) to a fixed pace (1) the requests of a second spread over its slots."""

TELLING: Final = 10
"""So many slots must lie between chance and a fixed pace, over the whole stretch: fewer say nothing."""

PER_NAME: Final = 1.5
"""Requests per name, at most."""


def rotating_candidates(rollup: DataFrame, params: StormParams) -> DataFrame:
    """Stretches in which one network was refused on one channel, under a new name nearly every time, and evenly.

    Many clients behind one address are refused at moments that have nothing to do with each other: of n requests, some
    share one of the 64 slots of their second. One client's do not, as long as it pauses at all.

    Returns:
        columns as of :func:`analytics.fleet.fleet_candidates`.
    """
    chance = f"sum({SLOTS} * (1 - power(1 - 1D / {SLOTS}, n)))"
    spread = f"sum(bit_count(slots)) - {chance} >= {EVEN} * (sum(least(n, {SLOTS})) - {chance})"
    telling = f"sum(least(n, {SLOTS})) - {chance} >= {TELLING}"
    lasting = f"max(last_us) - min(first_us) >= {micros(params.same_seq_s)}"
    ordered = "PARTITION BY node, net, channel ORDER BY bucket_us"
    bounds = "min(first_us) AS first_us, max(last_us) AS last_us, min(seq_lo) AS seq_lo, max(seq_hi) AS seq_hi"
    more = """min(head_lo) AS head_lo, max(head_hi) AS head_hi, max(retry_after_ms) AS retry_after_ms,
        try_sum(bytes_out) AS bytes_out, try_sum(dur_us) AS dur_us, max(answer) AS answer"""
    seconds = f"""
        SELECT node, net, channel, bucket_us, sum(n) AS n, {bounds}, {more}, bit_or(slots) AS slots,
            collect_set(client) AS who, min(release) AS release_lo, max(release) AS release_hi
        FROM {{rollup}} WHERE answer IN ({quoted(FAILURES)}) AND client IS NOT NULL AND net IS NOT NULL
        GROUP BY node, net, channel, bucket_us"""
    starts = f"IF(first_us - lag(last_us) OVER ({ordered}) <= {micros(params.gap_s)}, 0, 1)"
    # A crowd is no reason to carry all of its names along.
    few = f"n < {PER_NAME} * size(who) + 1"
    return query(
        f"""
        SELECT {", ".join((*BOTH, *MANY))}
        FROM (SELECT node, channel, sum(n) AS n, sum(n) AS hits, {bounds}, {more},
                min(release_lo) AS release_lo, max(release_hi) AS release_hi, cast(max(n) AS double) AS peak_rps,
                cast(size(array_distinct(flatten(collect_list(who)))) AS bigint) AS n_clients,
                slice(array_sort(array_distinct(flatten(collect_list(who)))), 1, {params.max_names}) AS clients,
                1L AS n_channels, array(channel) AS channels, false AS at_once, false AS insistent, true AS named,
                false AS slow, '{Severity.CRITICAL}' AS severity
            FROM (SELECT *, sum(starts) OVER ({ordered}) AS island
                FROM (SELECT *, {starts} AS starts FROM ({seconds}) WHERE {few}))
            GROUP BY node, net, channel, island
            HAVING sum(n) >= {params.critical_hits_alone} AND {lasting} AND {telling} AND {spread})
        WHERE n < {PER_NAME} * n_clients""",
        rollup=rollup,
    )
