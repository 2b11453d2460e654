"""Storms that no single client makes: many clients whose retries add up, or who all come at the same moment."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from tricklecast.analytics.answers import FAILURES, Answer, quoted
from tricklecast.analytics.durations import SECOND_US, micros
from tricklecast.analytics.own_time import own_us_sql
from tricklecast.analytics.params import StormParams
from tricklecast.analytics.query import planned, query
from tricklecast.analytics.severity import Severity, sums, worst_names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


BLOCK_US: Final = 600 * SECOND_US
"""Stretches are looked for by blocks of so much time: few have more than one, and few share one."""

TOLD_MS: Final = 1000
"""What a client that is refused without ``Retry-After`` is taken to have been told, milliseconds."""


_FOR_EVER_US: Final = 1 << 60


class Fleet(StrEnum):
    """What a fleet's candidate has where a single client's has its kind of answer."""

    OVERLOAD = "fleet_overload"
    HERD = "fleet_herd"


SINGLE: Final = ("client", "node_lo", "own_s", "mean_rps", "gap_ms", "seqs", "conn_bits", "busy_s", "closed", "waited")
MANY: Final = ("n_clients", "clients", "n_channels", "channels", "at_once", "insistent")
BOTH: Final = (
    *("answer", "severity", "node", "channel", "named", "slow", "n", "hits", "first_us", "last_us"),
    *("seq_lo", "seq_hi", "head_lo", "head_hi", "peak_rps", "retry_after_ms", "bytes_out", "dur_us"),
    *("release_lo", "release_hi"),
)
"""Columns of candidates: those that only single clients have, those that only fleets have, and the others."""


def candidates(single: DataFrame, fleets: DataFrame | None) -> DataFrame:
    """What single clients and fleets did, in rows with the same columns.

    Args:
        single: :func:`analytics.episodes.storms`; fleets: :func:`fleet_candidates`, if there may be any.
    """
    both, alone, many = (", ".join(names) for names in (BOTH, SINGLE, MANY))
    missing_here = ", ".join(f"NULL AS {name}" for name in MANY)
    missing_there = ", ".join(f"NULL AS {name}" for name in SINGLE)
    if fleets is None:
        numbers = "cast(NULL AS bigint) AS n_clients, cast(NULL AS bigint) AS n_channels"
        flags = "false AS at_once, false AS insistent"
        names = "cast(NULL AS array<string>) AS clients, cast(NULL AS array<string>) AS channels"
        return query(f"SELECT {both}, {alone}, {numbers}, {names}, {flags} FROM {{single}}", single=single)
    return query(
        f"""
        SELECT {both}, {alone}, {missing_here} FROM {{single}}
        UNION ALL
        SELECT {both}, {missing_there}, {many} FROM {{fleets}}""",
        single=single,
        fleets=fleets,
    )


def worth_looking(overload_clients: int, failed_clients: int, params: StormParams) -> bool:
    """Whether so few clients failed that there can be no fleet among them, which saves half of the plan.

    Args:
        overload_clients: distinct clients that were answered 429 or 503, about.
        failed_clients: distinct clients with any failure, about; a client may be counted once per kind.
    """
    # The counts are estimates, with an error of a tenth or so.
    return overload_clients >= params.many_clients * 0.7 or failed_clients >= params.herd_clients * 0.7


def fleet_candidates(rollup: DataFrame, params: StormParams) -> DataFrame:
    """Stretches of time in which many clients failed together, from the roll-up, each with its members.

    Returns:
        columns as of :func:`analytics.episodes.storms`, with a :class:`Fleet` as ``answer``, without
        ``client``; with ``channel`` only if there is just one; but with ``n_clients``, ``clients``, ``n_channels``,
        ``channels``, ``at_once`` and ``insistent``.
    """
    # Gone through twice.
    failures = planned(query(_failures(params), rollup=rollup))
    members = _members(_stretches(_seconds(params), params))
    again = f"n >= {params.amplification} * pairs"
    # Where most of it is the loops of single clients, those are told, each for itself.
    together = "2 * looping < n"
    # Who waits as long as it was told is no herd because it came with others, unless there was a cue for all.
    rude = f"2 * early >= n - {params.amplification} * n_clients"
    arrivals = f"n_channels >= {params.herd_channels} AND arrival_us <= {micros(params.herd_arrival_s)} AND {rude}"
    return query(
        f"""
        SELECT {", ".join((*BOTH, *MANY))}
        FROM (SELECT *, {arrivals} AS at_once, 2 * insisted >= n AS insistent,
                '{Severity.CRITICAL}' AS severity, true AS named, false AS slow
            FROM ({_added_up(members, params)}))
        WHERE answer = '{Fleet.OVERLOAD}' OR ({again} AND {together})""",
        failures=failures,
    )


def _failures(params: StormParams) -> str:
    """Who failed when, and how many of the lines came ``early``."""
    return f"""
        SELECT node, client, channel, release, answer, bucket_us, n, first_us, last_us, seq_lo, seq_hi,
            head_lo, head_hi, bytes_out, dur_us, guard_ms, retry_after_ms, {_early(params)} AS early
        FROM {{rollup}} WHERE answer IN ({quoted(FAILURES)}) AND client IS NOT NULL"""


def _early(params: StormParams) -> str:
    """How many of a row's lines came long before the client was told to come again; of those that were told nothing,
    all after the first."""
    told_us = f"""IF(retry_after_ms IS NULL AND answer <> '{Answer.OVERLOAD}', {_FOR_EVER_US}L,
        coalesce(retry_after_ms, {TOLD_MS}) * 1000 * {params.early}D)"""
    # The pause before a row began when the last answer of the one before was given.
    before = "lag(last_us + coalesce(guard_ms, 0L) * 1000D / n)"
    before += " OVER (PARTITION BY node, client, channel, answer ORDER BY bucket_us, first_us, release)"
    own_us = own_us_sql("(last_us - first_us)", "guard_ms", "n")
    inside = f"IF({own_us} / greatest(1L, n - 1) < {told_us}, n - 1, 0)"
    return f"{inside} + IF(first_us - {before} < {told_us}, 1, 0)"


def _seconds(params: StormParams) -> str:
    """Per node and second: how much failed, for how many; one row per kind of fleet that the second points to."""
    refused = f"answer = '{Answer.OVERLOAD}'"
    seconds = f"""
        SELECT node, bucket_us, min(first_us) AS first_us, max(last_us) AS last_us, sum(n) AS n,
            collect_set(client) AS who, sum(IF({refused}, n, 0)) AS refused, sum(IF({refused}, early, 0)) AS early,
            size(collect_set(IF({refused} AND early > 0, client, NULL))) AS early_clients,
            collect_set(IF(first_us < bucket_us + {SECOND_US // 2}, client, NULL)) AS who_first,
            collect_set(IF(last_us >= bucket_us + {SECOND_US // 2}, client, NULL)) AS who_last
        FROM {{failures}} GROUP BY node, bucket_us"""
    # A wave need not keep to the borders of seconds: with the second before it, if all of both came within one; or the
    # halves on either side of their border, where waves are a second apart.
    near = f"last_us - lag(first_us) OVER seconds <= {SECOND_US}"
    follows = f"bucket_us - lag(bucket_us) OVER seconds = {SECOND_US}"
    paired = f"""
        SELECT *, IF({near}, lag(who) OVER seconds, NULL) AS others, IF({near}, lag(n) OVER seconds, 0) AS n_others,
            IF({follows}, lag(who_last) OVER seconds, NULL) AS who_before, {_usual(params)} AS usual
        FROM ({seconds}) WINDOW seconds AS (PARTITION BY node ORDER BY bucket_us)"""
    # Of so many refusals, at least one was enough: the others came too early, so that amplification is at least 2.
    hot = f"early_clients >= {params.many_clients} AND refused >= {params.amplification} * (refused - early)"
    # In clients: one client's hot loop makes no second unusual for a crowd.
    crowd = """greatest(size(array_union(who, coalesce(others, who))),
        size(array_union(who_first, coalesce(who_before, who_first))))"""
    burst = f"{crowd} >= greatest({params.herd_clients}, {params.herd_ratio} * usual)"
    kinds = f"array_compact(array(IF({hot}, '{Fleet.OVERLOAD}', NULL), IF({burst}, '{Fleet.HERD}', NULL)))"
    return f"SELECT * EXCEPT (who, others, who_first, who_last, who_before), explode({kinds}) AS answer FROM ({paired})"


def _usual(params: StormParams) -> str:
    """Clients that fail in the node's usual second. Where most of its seconds have none, that is 1 rather than 0."""
    # In a short log, or a quiet one, the only seconds with failures are those of the herd: they are not the usual ones.
    whole = f"(max(bucket_us) OVER (PARTITION BY node) - min(bucket_us) OVER (PARTITION BY node)) / {SECOND_US} + 1"
    return f"""if(2 * count(1) OVER (PARTITION BY node) > greatest({params.usual_s}D, {whole}),
        percentile_approx(size(who), 0.5) OVER (PARTITION BY node), 1)"""


def _stretches(seconds: str, params: StormParams) -> str:
    """Islands of seconds: ``answer``, ``node``, ``from_us``, ``to_us``, ``peak_rps``."""
    overload = f"answer = '{Fleet.OVERLOAD}'"
    allowed = f"IF({overload}, {micros(params.gap_s)}, {micros(params.herd_gap_s)})"
    ordered = "OVER (PARTITION BY answer, node ORDER BY bucket_us)"
    enough = f"count(1) >= {params.amplified_s} AND sum(refused) >= {params.warn_hits_alone}"
    # However short, if it would be a storm of each.
    each = f"sum(refused) >= {params.warn_hits} * max(early_clients)"
    # Who still comes at the same rate after so long has been polling.
    waves = f"count(1) <= {params.herd_waves_s} OR max(n + n_others) >= {params.herd_ratio} * percentile_approx(n, 0.5)"
    return f"""
        SELECT answer, node, min(bucket_us) AS from_us, max(bucket_us) AS to_us,
            cast(max(IF({overload}, refused, n + n_others)) AS double) AS peak_rps
        FROM (SELECT *, sum(starts) {ordered} AS island
            FROM (SELECT *, IF(first_us - lag(last_us) {ordered} <= {allowed}, 0, 1) AS starts FROM ({seconds})))
        GROUP BY answer, node, island
        HAVING IF({overload}, ({enough}) OR {each}, {waves})"""


def _members(stretches: str) -> str:
    """What each stretch's clients did in it, per client and channel."""
    # A second on either side too: a wave begins and ends within seconds that are not full enough to be seen.
    since, until = f"(from_us - {SECOND_US})", f"(to_us + {SECOND_US})"
    # With the block as part of the key, no row is held against all stretches of its node.
    blocks = f"explode(sequence({since} DIV {BLOCK_US}, {until} DIV {BLOCK_US})) AS block"
    return f"""
        SELECT /*+ BROADCAST(t) */ t.answer, t.node, t.from_us, t.peak_rps, f.client, f.channel, {sums("f.")},
            sum(f.early) AS early, try_sum(f.guard_ms) AS guard_ms,
            min(f.release) AS release_lo, max(f.release) AS release_hi
        FROM {{failures}} f JOIN (SELECT *, {since} AS since, {until} AS until, {blocks} FROM ({stretches})) t
            ON f.node <=> t.node AND f.bucket_us DIV {BLOCK_US} = t.block AND f.bucket_us BETWEEN t.since AND t.until
            AND (t.answer = '{Fleet.HERD}' OR f.answer = '{Answer.OVERLOAD}')
        GROUP BY t.answer, t.node, t.from_us, t.peak_rps, f.client, f.channel"""


def _added_up(members: str, params: StormParams) -> str:
    own_s = f"greatest(1D, {own_us_sql('(last_us - first_us)', 'guard_ms', 'n')} / 1e6)"
    # What one client did in a stretch is a storm of its own.
    loops = f"""(n >= {params.warn_hits_alone} OR (n >= {params.warn_hits} AND n / {own_s} >= {params.warn_rps}))"""
    # Or it is none, but more than asking now and then whether it has changed.
    insists = f"(n >= {params.herd_insists} AND (n - 1) / {own_s} >= {params.herd_insists_rps})"
    return f"""
        SELECT * EXCEPT (a_channel), IF(n_channels = 1, a_channel, NULL) AS channel
        FROM (SELECT answer, node, from_us, peak_rps, {sums()}, sum(n) AS hits, sum(early) AS early, count(1) AS pairs,
                sum(IF({loops}, n, 0)) AS looping, sum(IF({insists}, n, 0)) AS insisted,
                cast(size(collect_set(client)) AS bigint) AS n_clients,
                cast(size(collect_set(channel)) AS bigint) AS n_channels, max(channel) AS a_channel,
                {worst_names("client", params)} AS clients, {worst_names("channel", params)} AS channels,
                percentile_approx(first_us, {params.herd_arrival_share}) - min(first_us) AS arrival_us,
                min(release_lo) AS release_lo, max(release_hi) AS release_hi
            FROM ({members}) GROUP BY answer, node, from_us, peak_rps)"""
