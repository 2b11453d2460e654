-- Stretches that are storms: what one client kept getting on one channel. Three ways to be one: an island that is a
-- storm by itself; islands of different answers that are one together (a client that is told "ended" and then 404
-- has not stopped in between); and what is left, where a slow loop may pause longer.
--   alone: a storm by itself. hurried: may be one together with others near it. enough: one of the two is so.
CREATE OR REPLACE TEMP TABLE islands AS
WITH judged AS (
    SELECT *, is_fast(hits, len(nodes), greatest(mean_rps, peak_rps)) AS fast,
        (fast OR hits >= slow_hits()) AND (answer <> 'not_found' OR fast OR mean_rps >= not_found_rps()) AS alone,
        -- Too few to be a storm, but too fast for a poll.
        alone OR (family IN ('failure', 'ended', 'zero_byte') AND hits >= fast_hits()
            AND mean_rps >= not_found_rps()) AS hurried
    FROM added_up('buckets')
),
runs AS (
    SELECT *, sum(starts) OVER (near ROWS UNBOUNDED PRECEDING) AS run
    FROM (
        SELECT *, CASE WHEN first_us - max(last_us) OVER (near ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
            <= gap_us() THEN 0 ELSE 1 END AS starts
        FROM judged
        WINDOW near AS (PARTITION BY client, named, channel, hurried ORDER BY first_us, last_us, answer)
    )
    WINDOW near AS (PARTITION BY client, named, channel, hurried ORDER BY first_us, last_us, answer)
)
SELECT * EXCLUDE (starts, run),
    alone OR (hurried AND sum(hits) OVER (PARTITION BY client, named, channel, hurried, run) >= slow_hits()) AS enough
FROM runs;

-- Parts are numbered from 1: the sign keeps what is enough apart from what is left.
CREATE OR REPLACE TEMP TABLE parts AS
SELECT * REPLACE (CASE WHEN enough THEN part ELSE -coarse END AS part)
FROM islands
WHERE enough OR answer IN ('not_found', 'seq_missing', 'overload');

-- Good answers to a client on a path on which it failed.
CREATE OR REPLACE TEMP TABLE cures AS
SELECT client, channel, bucket_us, total(n) AS n FROM candidate WHERE answer = 'cured' GROUP BY ALL;

CREATE OR REPLACE TEMP TABLE stretches AS
WITH added AS (
    SELECT * FROM added_up('parts')
),
-- "cured": good answers in its time. "usual_rps": the rate of those in the two minutes before, or after.
cured AS (
    SELECT key, chain, part, total_if(c.n, c.bucket_us BETWEEN first_us - 1000000 AND last_us + 1000000) AS cured,
        greatest(
            CASE WHEN total_if(c.n, c.bucket_us < first_us - 1000000) >= 5
                THEN total_if(c.n, c.bucket_us < first_us - 1000000) * 1e6
                    / greatest(1000000, first_us - min(c.bucket_us)) ELSE 0 END,
            CASE WHEN total_if(c.n, c.bucket_us > last_us) >= 5
                THEN total_if(c.n, c.bucket_us > last_us) * 1e6
                    / greatest(1000000, max(c.bucket_us) + 1000000 - last_us) ELSE 0 END) AS usual_rps
    FROM (SELECT *, unnest(slices(first_us - 120000000, last_us + 120000000)) AS slice FROM added) a
        JOIN cures c ON c.client = a.client AND c.channel = a.channel AND slice(c.bucket_us) = a.slice
        AND c.bucket_us BETWEEN first_us - 120000000 AND last_us + 120000000
    GROUP BY key, chain, part, first_us, last_us
)
SELECT * EXCLUDE (cured, usual_rps) REPLACE (
        -- Where most of a stretch was healthy (its buckets are long), its requests are those that were repeated.
        CASE WHEN answer = 'served' OR (once_per_seq(answer) AND 2 * hits < n) THEN hits ELSE n END AS n,
        -- Who was held all the time had no second as full as those of its own time.
        greatest(peak_rps, mean_rps) AS peak_rps),
    part < 0 AS slow,
    -- One program, and not many behind one key: they keep their connections, or come too evenly for people, or too often.
    (once_per_seq(answer) OR own_name(client, named) OR hits >= 10 * slow_hits() OR is_steady(pulse, mean_rps)
            OR conn_bits IS NOT NULL AND n >= crowd_per_conn() * connections(conn_bits, n))
        AND coalesce(release_lo = release_hi, true) AS solo
FROM added LEFT JOIN cured USING (key, chain, part)
WHERE (part > 0 OR is_fast(hits, len(nodes), greatest(mean_rps, peak_rps)) OR hits >= slow_hits())
    -- A failure after which the same request succeeds is a challenge (401, then 200; twice 401 with NTLM), or a retry
    -- that helped: what is left must be a storm.
    AND (coalesce(cured, 0) = 0 OR hits - 2 * cured >= slow_hits()
        OR is_fast(hits - 2 * cured, len(nodes), greatest(mean_rps, peak_rps)))
    -- Who asks no more often than when all is well does not retry: it polls, as a health check does.
    AND NOT (coalesce(usual_rps, 0) > 0 AND mean_rps <= 1.5 * usual_rps)
    -- Many clients behind one key: each of many connections asked about once, and then it was over.
    -- One path, asked for too often for that by one kind of program, is a loop.
    AND NOT (NOT once_per_seq(answer) AND named AND length_us <= crowd_us()
        AND NOT (is_path(channel) AND answer IN ('overload', 'server_error') AND n >= slow_hits())
        AND (n < crowd_per_conn() * connections(conn_bits, n)
            OR (conn_bits IS NULL AND NOT own_name(client, named))))
    AND NOT (is_probe(ua) AND mean_rps * (hits - 1) / hits <= 1.02 * overload_rps())
    -- A network may be any number of clients: a crowd comes, and is gone. One client that changes its name at every
    -- request comes steadily.
    AND NOT (NOT named AND answer <> 'web' AND (conn_bits IS NULL OR length_us <= anonymous_us()
        OR mean_rps < anonymous_rps() OR peak_rps > 3 * mean_rps))
    -- A segment asked for again now and then, as on a bad network: a bucket of a minute has no pause in it that
    -- could end an island, but its mean can be told.
    AND NOT (answer IN ('post', 'served') AND (hits - 1) * gap_us() < length_us)
    -- A monitor that asks every second for the current segment, or a player that seeks: segments that are there
    -- already, some times each, in no hurry.
    AND NOT (answer = 'served' AND 2 * waited < seqs AND n < browse_times() * seqs * readers
        AND hits * 1e6 < browse_rps() * length_us)
    -- Requests given up in a log that does not say after how long: long polls, unless they come too fast for that.
    AND NOT (answer = 'abandoned' AND coalesce(dur_us, 0) = 0
        AND NOT is_fast(hits, len(nodes), greatest(mean_rps, peak_rps)));
