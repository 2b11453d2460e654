"""From single clients' candidates, and the roll-up, to episodes: fleets, triggers, classes, what belongs together."""

from __future__ import annotations

from tests.analytics.oracle.islands import READERS, P, words
from tricklecast.analytics.answers import FAILURES, ONCE_PER_SEQ
from tricklecast.analytics.durations import micros
from tricklecast.analytics.triggers import CHANNEL_EVENTS, OTHERWISE, PLAUSIBLE, SERVER_EVENTS

SECOND = 1_000_000
SAME_NODE = "e.node IS NOT DISTINCT FROM coalesce(s.node, s.node_lo)"
SAME_PLACE = f"{SAME_NODE} AND e.channel IS NOT DISTINCT FROM s.channel"


def _failures() -> str:
    # Who is refused without a time is taken to have been told a second; who is told that there is nothing, for ever.
    told_us = f"""CASE WHEN retry_after_ms IS NULL AND answer <> 'overload' THEN 1::BIGINT << 60
        ELSE coalesce(retry_after_ms, 1000) * 1000 * {P.early} END"""
    return f"""
    CREATE TABLE failures AS SELECT *,
        CASE WHEN own_time(last_us - first_us, guard_ms, n) * 1e6 / greatest(1, n - 1) < {told_us} THEN n - 1 ELSE 0 END
        + CASE WHEN first_us - lag(last_us + guard_ms * 1000 / n) OVER w < {told_us} THEN 1 ELSE 0 END AS early
        FROM rollup WHERE answer IN ({words(FAILURES)}) AND client IS NOT NULL
        WINDOW w AS (PARTITION BY node, client, channel, answer ORDER BY bucket_us, first_us, release NULLS FIRST);"""


def _seconds() -> str:
    refused = "answer = 'overload'"
    whole = f"greatest({P.usual_s}, (max(bucket_us) OVER n - min(bucket_us) OVER n) / {SECOND} + 1)"
    usual = f"""CASE WHEN 2 * count(*) OVER n > {whole}
        THEN quantile_disc(len(who), 0.5) OVER n ELSE 1 END"""
    return f"""
    CREATE VIEW seconds AS SELECT node, bucket_us, min(first_us) AS first_us, max(last_us) AS last_us, sum(n) AS n,
        list(DISTINCT client) AS who, coalesce(sum(n) FILTER ({refused}), 0) AS refused,
        coalesce(sum(early) FILTER ({refused}), 0) AS early,
        count(DISTINCT client) FILTER ({refused} AND early > 0) AS early_clients,
        coalesce(list(DISTINCT client) FILTER (first_us % {SECOND} < {SECOND // 2}), []) AS who_first,
        coalesce(list(DISTINCT client) FILTER (last_us % {SECOND} >= {SECOND // 2}), []) AS who_last
        FROM failures GROUP BY node, bucket_us;
    CREATE VIEW paired AS SELECT *, {usual} AS usual,
        CASE WHEN last_us - lag(first_us) OVER w <= {SECOND} THEN lag(who) OVER w ELSE [] END AS others,
        CASE WHEN last_us - lag(first_us) OVER w <= {SECOND} THEN lag(n) OVER w ELSE 0 END AS n_others,
        CASE WHEN lag(bucket_us) OVER w = bucket_us - {SECOND} THEN lag(who_last) OVER w ELSE [] END AS who_before
        FROM seconds WINDOW w AS (PARTITION BY node ORDER BY bucket_us), n AS (PARTITION BY node);
    CREATE TABLE full_seconds AS
        SELECT *, 'fleet_overload' AS answer, refused AS height, {micros(P.gap_s)} AS allowed FROM paired
        WHERE early_clients >= {P.many_clients} AND refused >= {P.amplification} * (refused - early)
        UNION ALL
        SELECT *, 'fleet_herd', n + n_others, {micros(P.herd_gap_s)} FROM paired
        WHERE greatest({P.herd_clients}, {P.herd_ratio} * usual) <= greatest(
            len(list_distinct(list_concat(who, others))), len(list_distinct(list_concat(who_first, who_before))));"""


def _stretches() -> str:
    return f"""
    CREATE TABLE stretches AS SELECT answer, node, min(bucket_us) AS from_us, max(bucket_us) AS to_us,
        max(height)::DOUBLE AS peak_rps
        FROM (SELECT *, count(*) FILTER (pause IS NULL OR pause > allowed) OVER w AS island
            FROM (SELECT *, first_us - lag(last_us) OVER w AS pause FROM full_seconds
                WINDOW w AS (PARTITION BY answer, node ORDER BY bucket_us))
            WINDOW w AS (PARTITION BY answer, node ORDER BY bucket_us))
        GROUP BY answer, node, island
        HAVING CASE WHEN answer = 'fleet_herd'
            THEN count(*) <= {P.herd_waves_s} OR max(height) >= {P.herd_ratio} * quantile_disc(n, 0.5)
            ELSE count(*) >= {P.amplified_s} AND sum(refused) >= {P.warn_hits_alone}
                OR sum(refused) >= {P.warn_hits} * max(early_clients) END;
    CREATE TABLE members AS SELECT t.answer, t.node, t.from_us, t.peak_rps, f.client, f.channel, sum(f.n) AS n,
        min(f.first_us) AS first_us, max(f.last_us) AS last_us, min(f.seq_lo) AS seq_lo, max(f.seq_hi) AS seq_hi,
        sum(f.early) AS early, sum(f.guard_ms) AS guard_ms, min(f.release) AS release_lo, max(f.release) AS release_hi
        FROM failures f JOIN stretches t ON f.node IS NOT DISTINCT FROM t.node
            AND f.bucket_us BETWEEN t.from_us - {SECOND} AND t.to_us + {SECOND}
            AND (t.answer = 'fleet_herd' OR f.answer = 'overload')
        GROUP BY ALL;"""


def _rotating() -> str:
    """One client under a new name nearly every time: one network, one channel, evenly spread over 64ths of seconds."""
    chance = "sum(64 * (1 - power(1 - 1 / 64, n)))"
    return f"""
    CREATE TABLE by_network AS SELECT node, net, channel, bucket_us, sum(n)::BIGINT AS n, min(first_us) AS first_us,
        max(last_us) AS last_us, min(seq_lo) AS seq_lo, max(seq_hi) AS seq_hi, min(head_lo) AS head_lo,
        max(head_hi) AS head_hi, max(retry_after_ms) AS retry_after_ms, max(answer) AS answer, bit_or(slots) AS slots,
        list(DISTINCT client) AS who, min(release) AS release_lo, max(release) AS release_hi
        FROM rollup WHERE answer IN ({words(FAILURES)}) AND client IS NOT NULL AND net IS NOT NULL
        GROUP BY node, net, channel, bucket_us HAVING sum(n) < 1.5 * count(DISTINCT client) + 1;
    CREATE TABLE rotating AS SELECT *, 'critical' AS severity, true AS named, false AS slow, false AS at_once,
        1 AS n_channels, [channel] AS channels, n AS hits, len(clients) AS n_clients
        FROM (SELECT node, channel, sum(n)::BIGINT AS n, min(first_us) AS first_us, max(last_us) AS last_us,
            min(seq_lo) AS seq_lo, max(seq_hi) AS seq_hi, min(head_lo) AS head_lo, max(head_hi) AS head_hi,
            max(retry_after_ms) AS retry_after_ms, max(answer) AS answer, min(release_lo) AS release_lo,
            max(release_hi) AS release_hi, max(n)::DOUBLE AS peak_rps,
            list_sort(list_distinct(flatten(list(who)))) AS clients
            FROM (SELECT *, count(*) FILTER (pause IS NULL OR pause > {micros(P.gap_s)}) OVER w AS island
                FROM (SELECT *, first_us - lag(last_us) OVER w AS pause FROM by_network
                    WINDOW w AS (PARTITION BY node, net, channel ORDER BY bucket_us))
                WINDOW w AS (PARTITION BY node, net, channel ORDER BY bucket_us))
            GROUP BY node, net, channel, island
            HAVING sum(n) >= {P.critical_hits_alone} AND max(last_us) - min(first_us) >= {micros(P.same_seq_s)}
                AND sum(least(n, 64)) - {chance} >= 10
                AND sum(bit_count(slots)) - {chance} >= 0.5 * (sum(least(n, 64)) - {chance}))
        WHERE n < 1.5 * len(clients);"""


def _fleets() -> str:
    loops = f"""n >= {P.warn_hits_alone}
        OR n >= {P.warn_hits} AND n / greatest(1, own_time(last_us - first_us, guard_ms, n)) >= {P.warn_rps}"""
    insists = f"""n >= {P.herd_insists}
        AND (n - 1) / greatest(1, own_time(last_us - first_us, guard_ms, n)) >= {P.herd_insists_rps}"""
    return f"""
    CREATE TABLE fleets AS SELECT * EXCLUDE (from_us, early, looping, insisted, arrival_us, a_channel, pairs),
        'critical' AS severity, true AS named, false AS slow, CASE WHEN n_channels = 1 THEN a_channel END AS channel,
        n_channels >= {P.herd_channels} AND arrival_us <= {micros(P.herd_arrival_s)}
            AND 2 * early >= n - {P.amplification} * n_clients AS at_once, 2 * insisted >= n AS insistent
        FROM (SELECT answer, node, from_us, peak_rps, sum(n)::BIGINT AS n, sum(n)::BIGINT AS hits,
            min(first_us) AS first_us, max(last_us) AS last_us, min(seq_lo) AS seq_lo, max(seq_hi) AS seq_hi,
            sum(early) AS early, count(*) AS pairs, coalesce(sum(n) FILTER ({loops}), 0) AS looping,
            coalesce(sum(n) FILTER ({insists}), 0) AS insisted,
            count(DISTINCT client) AS n_clients, count(DISTINCT channel) AS n_channels, max(channel) AS a_channel,
            list(client ORDER BY n DESC, client DESC) FILTER (client IS NOT NULL) AS clients,
            list(channel ORDER BY n DESC, channel DESC) FILTER (channel IS NOT NULL) AS channels,
            quantile_disc(first_us, {P.herd_arrival_share}) - min(first_us) AS arrival_us,
            min(release_lo) AS release_lo, max(release_hi) AS release_hi
            FROM members GROUP BY answer, node, from_us, peak_rps)
        WHERE answer = 'fleet_overload' OR n >= {P.amplification} * pairs AND 2 * looping < n;
    CREATE TABLE found AS SELECT row_number() OVER () AS number, * FROM (SELECT * FROM candidates
        UNION ALL BY NAME SELECT * FROM fleets UNION ALL BY NAME SELECT * FROM rotating);"""


def _context() -> str:
    """What happened around the beginning of each storm."""
    cases = []
    for answers, ranked in (*PLAUSIBLE.items(), ((), OTHERWISE)):
        places = " ".join(f"WHEN e.event IN ({words(events)}) THEN {-place}" for place, events in enumerate(ranked))
        of = f"WHEN s.answer IN ({words(answers)}) THEN" if answers else "ELSE"
        cases.append(f"{of} CASE {places} END")
    rank = f"CASE {' '.join(cases)} END"
    since = f"s.first_us - {micros(P.trigger_before_s)}"
    near = f"e.ts_us BETWEEN {since} AND s.first_us + {micros(P.trigger_after_s)}"
    oldest = f"""CASE e.event WHEN 'channel_end' THEN {micros(P.trigger_before_s)}
        WHEN 'channel_create' THEN {micros(P.birth_before_s)} ELSE {micros(P.restart_before_s)} END"""
    in_time = f"e.ts_us BETWEEN s.first_us - {oldest} AND s.first_us + {micros(P.trigger_after_s)}"
    at_its_end = f"""e.event = 'channel_end' AND s.answer IN ('zero_byte', 'served')
        AND e.ts_us BETWEEN {since} AND s.last_us + {micros(P.gap_s)}"""
    born_until = f"s.last_us + {micros(P.slow_gap_s)}"
    return f"""
    CREATE TABLE causes AS SELECT s.number,
        arg_max(e, {{'rank': {rank}, 'before': e.ts_us <= s.first_us, 'ts_us': e.ts_us, 'event': e.event}}) AS best
        FROM found s JOIN happened e ON {SAME_NODE} AND (e.event IN ({words(SERVER_EVENTS)})
            OR e.event IN ({words(CHANNEL_EVENTS)}) AND e.channel IS NOT DISTINCT FROM s.channel)
        WHERE ({in_time} OR {at_its_end}) AND {rank} IS NOT NULL AND NOT (e.event = 'channel_end' AND EXISTS (
            FROM happened c WHERE c.event = 'channel_create' AND c.node IS NOT DISTINCT FROM e.node
            AND c.channel IS NOT DISTINCT FROM e.channel AND c.ts_us > e.ts_us AND c.ts_us <= s.first_us))
        GROUP BY s.number;
    CREATE TABLE ends AS SELECT s.number, max(e.ts_us) AS ended_us FROM found s JOIN happened e ON {SAME_PLACE}
        WHERE e.event = 'channel_end' AND {near} GROUP BY s.number;
    CREATE TABLE births AS SELECT s.number,
        count(*) FILTER (e.ts_us BETWEEN coalesce(x.ended_us, s.first_us) AND {born_until}) AS births,
        count(*) FILTER (e.ts_us > s.first_us AND e.ts_us <= s.last_us) AS within
        FROM found s LEFT JOIN ends x USING (number) JOIN happened e ON {SAME_PLACE}
        WHERE e.event = 'channel_create' GROUP BY s.number;
    CREATE TABLE told AS SELECT s.*, c.best.event AS trigger, c.best.ts_us AS trigger_us, x.ended_us,
        coalesce(b.births, 0) AS births, 1 + coalesce(b.within, 0) AS lives
        FROM found s LEFT JOIN causes c USING (number) LEFT JOIN ends x USING (number)
        LEFT JOIN births b USING (number);"""


def _classes() -> str:
    rises = "coalesce(2 * (seq_hi - seq_lo + 1) >= n, false)"
    unhurried = f"mean_rps < {P.not_found_rps} AND peak_rps < {P.warn_rps}"
    told_ms = f"greatest(1, {P.early} * retry_after_ms)"
    once_each_life = f"hits - (lives - 1) * seqs * {READERS}"
    return f"""
    CREATE VIEW lived AS SELECT *, {once_each_life} AS hits_left FROM told;
    CREATE TABLE classed AS SELECT * FROM (SELECT *, CASE answer
        WHEN 'zero_byte' THEN 'zero_byte_loop' WHEN 'served' THEN 'same_segment_loop' WHEN 'ended' THEN 'ended_loop'
        WHEN 'post' THEN 'repost_loop' WHEN 'server_error' THEN 'server_error_loop'
        WHEN 'rejected' THEN 'rejected_loop' WHEN 'abandoned' THEN 'abandoned_loop'
        WHEN 'fleet_overload' THEN 'overload_amplification'
        WHEN 'fleet_herd' THEN CASE WHEN trigger IN ({words(SERVER_EVENTS)}) OR at_once
            OR trigger = 'channel_end' AND insistent THEN 'thundering_herd' END
        WHEN 'overload' THEN CASE WHEN CASE WHEN retry_after_ms > 0
            THEN gap_ms >= {P.early} * retry_after_ms AND peak_rps <= 1 + 1000 / {told_ms}
            ELSE slow OR mean_rps < {P.overload_rps} AND peak_rps < {P.warn_rps} END THEN NULL
            ELSE 'overload_client' END
        WHEN 'not_found' THEN CASE WHEN NOT slow OR mean_rps >= {P.not_found_rps} THEN 'not_found_loop'
            WHEN (ended_us IS NOT NULL OR 2 * closed >= n) AND births = 0 THEN 'not_found_drip' END
        WHEN 'seq_missing' THEN CASE
            WHEN {unhurried} AND seq_hi - seq_lo + 1 >= 2 * n AND NOT coalesce(seq_lo >= head_lo, false) THEN NULL
            WHEN coalesce(seq_lo >= head_lo, seq_hi > seq_lo OR seq_hi = 0, head_hi = 0, true) THEN CASE
                WHEN {unhurried} AND NOT {rises} AND coalesce(seq_hi <= head_hi + 1, true) THEN NULL
                WHEN slow AND NOT (head_lo IS NOT DISTINCT FROM head_hi AND {rises}) THEN NULL
                ELSE 'seq_ahead_sweep' END
            WHEN NOT slow THEN 'seq_behind_loop' END
        END AS class FROM lived
        WHERE answer NOT IN ({words(ONCE_PER_SEQ)}) OR lives = 1 OR hits_left >= {P.warn_hits_alone}
            OR hits_left >= {P.warn_hits} AND peak_rps >= {P.warn_rps})
    WHERE class IS NOT NULL;"""


def _merged(name: str, source: str, key: str, by: str, *own: str) -> str:
    """Puts together what overlaps within a key."""
    ordered = f"PARTITION BY {key} ORDER BY first_us, last_us, {by} NULLS FIRST"
    before = f"max(last_us) OVER ({ordered} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
    allowed = f"CASE WHEN slow THEN {micros(P.slow_gap_s)} ELSE {micros(P.gap_s)} END"
    columns = ", ".join(own)
    return f"""
    CREATE TABLE {name} AS SELECT {key}, sum(n)::BIGINT AS n, sum(hits)::BIGINT AS hits, min(first_us) AS first_us,
        max(last_us) AS last_us, min(seq_lo) AS seq_lo, max(seq_hi) AS seq_hi, min(severity) AS severity,
        bool_or(slow) AS slow, min(release_lo) AS release_lo, max(release_hi) AS release_hi,
        greatest(max(peak_rps), sum(hits) / greatest(1, (max(last_us) - min(first_us)) / 1e6)) AS peak_rps,
        arg_min(trigger, first_us) FILTER (trigger IS NOT NULL) AS trigger, {columns}
        FROM (SELECT *, count(*) FILTER (starts) OVER ({ordered} ROWS UNBOUNDED PRECEDING) AS overlap
            FROM (SELECT *, coalesce(first_us - {before} > {allowed}, true) AS starts FROM {source}))
        GROUP BY {key}, overlap;"""


def _names(name: str) -> str:
    return f"list({name} ORDER BY n DESC, {name} DESC) FILTER ({name} IS NOT NULL)"


def _episodes() -> str:
    by_client = _merged(
        "by_channel",
        "classed",
        "class, node, channel, named",
        "client",
        "list_sort(list(DISTINCT client) FILTER (client IS NOT NULL)) AS crowd",
        f"coalesce(arg_max(clients, n), {_names('client')}) AS clients",
        "coalesce(max(n_clients), count(DISTINCT client)) AS n_clients",
        "max(n_channels) AS n_channels",
        "arg_max(channels, n) AS channels",
    )
    by_channel = _merged(
        "merged",
        "by_channel",
        "class, node, crowd, n_clients, named",
        "channel",
        "arg_max(clients, n) AS clients",
        "coalesce(max(n_channels), count(DISTINCT channel)) AS n_channels",
        f"coalesce(arg_max(channels, n), {_names('channel')}) AS channels",
    )
    overlap = "w.class = 'overload_amplification' AND w.node IS NOT DISTINCT FROM e.node"
    return f"""{by_client}{by_channel}
    CREATE TABLE episodes AS SELECT * EXCLUDE (class), CASE WHEN release_lo = release_hi THEN release_hi END AS release,
        CASE WHEN class = 'overload_client' AND n_clients >= {P.many_clients} THEN 'overload_amplification'
            ELSE class END AS class
        FROM merged e WHERE NOT (class IN ('overload_client', 'thundering_herd') AND EXISTS (FROM merged w
            WHERE {overlap} AND w.first_us <= e.last_us AND e.first_us <= w.last_us));"""


def storms() -> list[str]:
    """From ``rollup``, ``candidates`` and ``happened`` to ``episodes``."""
    return [_failures(), _seconds(), _stretches(), _rotating(), _fleets(), _context(), _classes(), _episodes()]
