-- Storms that no single client makes: many whose retries add up (fleet_overload), or who come at one moment and
-- again (fleet_herd). Judged per node and second; the retries of a path may be on several nodes ("node" is then that of
-- spread.sql, and "host" the server). In these tables:
--   failures: what clients with a name were refused. retries: who comes again, and is a storm with others. fleet_seconds: seconds of a node with enough of them.
--   fleet_spans: such seconds without a longer pause. fleets: what the clients did in them, and whether they came again.
CREATE OR REPLACE TEMP TABLE failures AS
SELECT *, inside + CASE WHEN first_us - before < told_us THEN 1 ELSE 0 END AS early
FROM (
    -- "early": lines that came long before the client was told to come again. Who was told nothing was told a
    -- second, if it was refused; a 404 is early whenever it comes again.
    SELECT *,
        CASE WHEN own_us(last_us - first_us, guard_ms, n) / greatest(1, n - 1) < told_us THEN n - 1 ELSE 0 END
            AS inside,
        -- The pause before a row began when the last answer of the one before was given.
        lag(last_us + coalesce(guard_ms, 0) * 1000.0 / n) OVER (
            PARTITION BY node, client, channel, answer ORDER BY bucket_us, first_us) AS before
    FROM (
        SELECT node, coalesce(event, node) AS host, client, channel, answer, bucket_us, n, first_us, last_us, seq_lo, seq_hi, head_lo, head_hi,
            bytes_in, bytes_out, dur_us, guard_ms, retry_after_ms, release_lo, release_hi, ua, status_lo, status_hi,
            reason, request, blind,
            CASE WHEN retry_after_ms IS NULL AND answer <> 'overload' THEN 1e18
                ELSE coalesce(retry_after_ms, 1000) * 1000 * early() END AS told_us
        FROM placed('candidate')
        WHERE is_bad(answer) AND named
            -- Fewer clients are no crowd anywhere.
            AND (SELECT count(DISTINCT client) FROM candidate WHERE is_bad(answer) AND named)
                >= least(many_clients(), herd_clients())
    )
);

CREATE OR REPLACE TEMP TABLE fleet_seconds AS
WITH seconds AS (
    SELECT node, bucket_us, min(first_us) AS first_us, max(last_us) AS last_us, total(n) AS n,
        list(DISTINCT client) AS who,
        total_if(n, is_refused(answer, reason)) AS refused,
        total_if(early, is_refused(answer, reason)) AS early,
        count(DISTINCT client) FILTER (is_refused(answer, reason) AND early > 0) AS early_clients,
        list(DISTINCT client) FILTER (first_us < bucket_us + 500000) AS who_first,
        list(DISTINCT client) FILTER (last_us >= bucket_us + 500000) AS who_last
    FROM failures WHERE is_failure(answer) AND node = host
    GROUP BY node, bucket_us
),
-- A wave need not keep to the borders of seconds: a second counts with the one before if all of both came within
-- one, or the halves on either side of their border do.
paired AS (
    SELECT *,
        CASE WHEN last_us - lag(first_us) OVER near <= 1000000 THEN lag(who) OVER near END AS others,
        CASE WHEN last_us - lag(first_us) OVER near <= 1000000 THEN lag(n) OVER near ELSE 0 END AS n_others,
        CASE WHEN bucket_us - lag(bucket_us) OVER near = 1000000 THEN lag(who_last) OVER near END AS who_before,
        -- A pause counts for ten minutes at most: one clock that is years ahead must not make all seconds unusual.
        least(600000000, bucket_us - lag(bucket_us) OVER near) AS since_last
    FROM seconds
    WINDOW near AS (PARTITION BY node ORDER BY bucket_us)
),
-- Clients that fail in the node's usual second; where most of its seconds have none that is 1. In a short log, or
-- a quiet one, the only seconds with failures are those of the herd: they are not the usual ones.
usual AS (
    SELECT node, CASE WHEN 2 * count(*) > greatest(usual_s(), coalesce(sum(since_last), 0) / 1e6 + 1)
        THEN quantile_disc(len(who), 0.5) ELSE 1 END AS usual
    FROM paired GROUP BY node
),
crowded AS (
    SELECT *, CASE WHEN greatest(len(who), len(who_first)) + greatest(len(coalesce(others, [])),
                len(coalesce(who_before, []))) < herd_clients() THEN 0
            ELSE greatest(len(list_distinct(list_concat(who, coalesce(others, [])))),
                len(list_distinct(list_concat(coalesce(who_first, []), coalesce(who_before, []))))) END AS crowd
    FROM paired JOIN usual USING (node)
)
-- Of so many refusals at least one was enough: the others came too early, so that amplification is at least 2.
SELECT 'fleet_overload' AS answer, node, bucket_us, first_us, last_us, n, refused, early_clients, refused AS load
FROM crowded WHERE early_clients >= many_clients() AND refused >= amplification() * (refused - early)
UNION ALL
-- In clients: one client's hot loop makes no second unusual for a crowd.
SELECT 'fleet_herd', node, bucket_us, first_us, last_us, n, refused, early_clients, n + n_others
FROM crowded WHERE crowd >= greatest(herd_clients(), herd_ratio() * usual);

-- Many who each try the same request again (macros.sql), of one server, or of a path on all of its servers.
CREATE OR REPLACE TEMP TABLE retries AS FROM retries_of('failures');

CREATE OR REPLACE TEMP TABLE fleet_spans AS
SELECT answer, node, min(bucket_us) - 1000000 AS since_us, max(bucket_us) + 1000000 AS until_us,
    CAST(max(load) AS DOUBLE) AS peak_rps, max_by(bucket_us, (load, -bucket_us)) AS peak_us
FROM (
    SELECT *, sum(starts) OVER (near ROWS UNBOUNDED PRECEDING) AS span
    FROM (
        SELECT *, CASE WHEN first_us - lag(last_us) OVER near
            <= CASE WHEN answer = 'fleet_overload' THEN gap_us() ELSE herd_gap_us() END THEN 0 ELSE 1 END AS starts
        FROM fleet_seconds
        WINDOW near AS (PARTITION BY answer, node ORDER BY bucket_us)
    )
    WINDOW near AS (PARTITION BY answer, node ORDER BY bucket_us)
)
GROUP BY answer, node, span
HAVING CASE WHEN answer = 'fleet_overload'
    -- However short, if it would be a storm of each.
    THEN (count(*) >= amplified_s() AND sum(refused) >= slow_hits()) OR sum(refused) >= fast_hits() * max(early_clients)
    -- Who still comes at the same rate after so long has been polling.
    ELSE count(*) <= herd_waves_s() OR max(load) >= herd_ratio() * quantile_disc(n, 0.5) END
UNION ALL
SELECT answer, node, since_us, max(until_us), CAST(max(n) AS DOUBLE), max_by(bucket_us, (n, -bucket_us))
FROM (
    SELECT r.answer, r.node, r.since_us, max(r.until_us) AS until_us, f.bucket_us, total(f.n) AS n
    FROM (SELECT *, unnest(slices(first_us, last_us)) AS slice FROM retries) r
        JOIN failures f ON f.node = r.node AND f.client = r.client AND f.channel = r.channel
            AND slice(f.first_us) = r.slice AND f.first_us BETWEEN r.first_us AND r.last_us
            AND retried_as(f.answer) = r.answer
    GROUP BY r.answer, r.node, r.since_us, f.bucket_us
)
GROUP BY answer, node, since_us;

-- What each fleet's clients did in its time, a second on either side included: a wave begins and ends within
-- seconds that are not full enough to be seen.
CREATE OR REPLACE TEMP TABLE fleets AS
WITH inside AS (
    SELECT s.answer AS fleet, s.since_us, s.until_us, s.peak_rps, s.peak_us, f.*
    FROM (SELECT *, unnest(slices(since_us, until_us)) AS slice FROM fleet_spans) s
        JOIN failures f ON f.node = s.node AND slice(f.bucket_us) = s.slice
        AND f.bucket_us BETWEEN s.since_us AND s.until_us
        AND (s.answer = 'fleet_herd' AND is_failure(f.answer) OR s.answer = 'fleet_overload' AND is_refused(f.answer, f.reason))
    UNION ALL
    SELECT s.answer, s.since_us, s.until_us, s.peak_rps, s.peak_us, f.*
    FROM fleet_spans s JOIN (SELECT *, unnest(slices(first_us, last_us)) AS slice FROM retries) r
            ON r.answer = s.answer AND r.node = s.node AND r.since_us = s.since_us
        JOIN failures f ON f.node = r.node AND f.client = r.client AND f.channel = r.channel
            AND slice(f.first_us) = r.slice AND f.first_us BETWEEN r.first_us AND r.last_us
            AND retried_as(f.answer) = r.answer
),
members AS (
    SELECT *,
        -- What one client did in a herd's time is a storm of its own, and told for itself.
        fleet = 'fleet_herd' AND (n >= slow_hits() OR (n >= fast_hits() AND n / greatest(1, own_s) >= fast_rps()))
            AS looping,
        -- It is more than asking now and then whether it has changed.
        n >= herd_insists() AND (n - 1) / greatest(1, own_s) >= herd_insists_rps() AND mean_s >= steady() * own_s
            AS insists
    FROM (
        SELECT fleet, node, since_us, client, channel, total(n) AS n, total(early) AS early,
            -- To be sent away when a server stops is a cue for coming, and no coming.
            1 + CAST(bool_or(coalesce(reason = 'shutdown', false)) AS INT) AS wanted,
            min(first_us) AS first_us,
            -- Who failed before it all began did not come with the others.
            arg_min(coalesce(first_us - before > slow_gap_us(), true), first_us) AS fresh,
            own_us(max(last_us) - min(first_us), total(guard_ms), total(n)) / 1e6 AS own_s,
            mean_us(n, first_us, last_us) / 1e6 AS mean_s, clock_s(max(blind)) AS clock_s
        FROM inside GROUP BY fleet, node, since_us, client, channel
    )
),
rows AS (
    SELECT i.*
    FROM inside i JOIN members m ON m.fleet = i.fleet AND m.node = i.node AND m.since_us = i.since_us
        AND m.client = i.client AND m.channel IS NOT DISTINCT FROM i.channel AND NOT m.looping
),
judged AS (
    SELECT fleet, node, since_us, total(wanted) AS wanted, total(wanted - 1) AS sent_away, total(early) AS early,
        total_if(n, insists) AS insisted, count(DISTINCT client) FILTER (insists) AS insisting,
        -- They back off, and not in step: each for as long as the others would be a wave again.
        coalesce(sum(mean_s) FILTER (n >= tries()) < steady() * sum(own_s) FILTER (n >= tries())
            AND max(clock_s) + quantile_cont(own_s, 0.75) FILTER (n >= tries())
                - quantile_cont(own_s, 0.25) FILTER (n >= tries()) > 0.05 * median(own_s) FILTER (n >= tries()), false)
            AS slows,
        count(DISTINCT client) FILTER (fresh) AS arrivals, total_if(n, fresh) AS n_fresh,
        quantile_disc(CASE WHEN fresh THEN first_us END, herd_arrival_share())
            - min(CASE WHEN fresh THEN first_us END) AS arrival_us
    FROM members WHERE NOT looping GROUP BY fleet, node, since_us
),
-- Channels that several of the clients asked for, and how many clients did not ask for the one that most did.
wanted_channels AS (
    SELECT fleet, node, since_us, list(channel) FILTER (clients >= many_clients()) AS shared,
        sum(clients) - max(clients) AS elsewhere
    FROM (
        SELECT fleet, node, since_us, channel, count(DISTINCT client) AS clients
        FROM members WHERE NOT looping GROUP BY fleet, node, since_us, channel
    )
    GROUP BY fleet, node, since_us
),
seconds AS (
    SELECT fleet, node, since_us, bucket_us, min(first_us) AS from_us, max(last_us) AS until_us, total(n) AS n
    FROM rows GROUP BY fleet, node, since_us, bucket_us
),
pulses AS (
    SELECT fleet, node, since_us,
        list({'from_us': from_us, 'until_us': until_us, 'n': n} ORDER BY bucket_us) AS pulse
    FROM seconds GROUP BY fleet, node, since_us
),
sums AS (
    SELECT fleet, node, since_us, max(until_us) AS until_us, max(peak_rps) AS peak_rps,
        max(peak_us) AS peak_us,
        total(n) AS n, total(bytes_in) AS bytes_in, total(bytes_out) AS bytes_out, total(dur_us) AS dur_us,
        total(guard_ms) AS guard_ms,
        total_if(n, answer IN ('overload', 'server_error')) AS n_refused,
        min(first_us) AS first_us, max(last_us) AS last_us, min(seq_lo) AS seq_lo, max(seq_hi) AS seq_hi,
        min(head_lo) AS head_lo, max(head_hi) AS head_hi, max(retry_after_ms) AS retry_after_ms,
        min(release_lo) AS release_lo, max(release_hi) AS release_hi, max(ua) AS ua,
        min(status_lo) AS status_lo, max(status_hi) AS status_hi, max(reason) AS reason, min(request) AS request,
        max(blind) AS blind,
        list_sort(list(DISTINCT host)) AS nodes, list_sort(list(DISTINCT client)) AS clients,
        list_sort(list(DISTINCT channel)) AS channels
    FROM rows GROUP BY fleet, node, since_us
),
-- For the map of clients and time: the busiest twenty, in sixty steps.
busiest AS (
    SELECT fleet, node, since_us, client FROM members WHERE NOT looping GROUP BY fleet, node, since_us, client
    QUALIFY row_number() OVER (PARTITION BY fleet, node, since_us ORDER BY sum(n) DESC, client) <= 20
),
busy AS (
    SELECT fleet, node, since_us,
        list({'client': client, 'from_us': from_us, 'until_us': until_us, 'n': n} ORDER BY from_us, client) AS busiest
    FROM (
        SELECT fleet, node, since_us, client, min(r.bucket_us) AS from_us, max(r.bucket_us) AS until_us,
            total(r.n) AS n
        FROM rows r JOIN busiest USING (fleet, node, since_us, client) JOIN sums s USING (fleet, node, since_us)
        GROUP BY fleet, node, since_us, client,
            (r.bucket_us - s.first_us) // greatest(1000000, (s.until_us - s.first_us) // 60)
    )
    GROUP BY fleet, node, since_us
)
SELECT s.* EXCLUDE (fleet), s.fleet AS answer, p.pulse, b.busiest, coalesce(h.shared, []) AS shared,
    -- Who waits as long as it was told is no herd because it came with others, unless there was a cue for all.
    CASE WHEN s.fleet = 'fleet_retry' THEN arrival_us <= herd_arrival_us() AND arrivals >= herd_clients()
        AND arrivals >= herd_arrival_share() * len(clients) ELSE len(channels) >= herd_channels() AND h.elsewhere >= many_clients()
        AND NOT slows AND arrival_us <= herd_arrival_us() AND arrivals >= herd_clients() AND 2 * n_fresh >= n AND 2 * early >= n - amplification() * len(clients) END AS at_once,
    2 * insisted >= n AND insisting >= herd_clients() AS insistent,
    sent_away >= many_clients() AS restarted
FROM sums s JOIN judged j USING (fleet, node, since_us) JOIN pulses p USING (fleet, node, since_us)
    JOIN wanted_channels h USING (fleet, node, since_us) JOIN busy b USING (fleet, node, since_us)
-- A herd comes again.
WHERE CASE s.fleet WHEN 'fleet_herd' THEN n >= amplification() * wanted AND len(clients) >= herd_clients()
    -- Nor do clients that back off keep a server overloaded.
    WHEN 'fleet_overload' THEN NOT slows ELSE true END;
