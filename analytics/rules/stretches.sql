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

CREATE OR REPLACE TEMP TABLE stretches AS
SELECT * REPLACE (
        -- Where most of a stretch was healthy (its buckets are long), its requests are those that were repeated.
        CASE WHEN answer = 'served' OR (once_per_seq(answer) AND 2 * hits < n) THEN hits ELSE n END AS n,
        -- Who was held all the time had no second as full as those of its own time.
        greatest(peak_rps, mean_rps) AS peak_rps),
    part < 0 AS slow
FROM added_up('parts')
WHERE (part > 0 OR is_fast(hits, len(nodes), greatest(mean_rps, peak_rps)) OR hits >= slow_hits())
    -- Many clients behind one key: each of many connections asked about once, and then it was over.
    AND NOT (NOT once_per_seq(answer) AND named AND length_us <= crowd_us()
        AND (n < crowd_per_conn() * connections(conn_bits, n)
            OR (conn_bits IS NULL AND NOT own_name(client, named))))
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
