-- Stretches that are storms: parts that are one by themselves, and what is left where a slow loop may pause
-- longer.
CREATE OR REPLACE TEMP TABLE islands AS
SELECT *, (is_fast(hits, len(nodes), greatest(mean_rps, peak_rps)) OR hits >= slow_hits())
    AND (answer <> 'not_found' OR is_fast(hits, len(nodes), greatest(mean_rps, peak_rps))
        OR mean_rps >= not_found_rps()) AS alone
FROM added_up('buckets');

-- Parts are numbered from 1: the sign keeps the two kinds apart.
CREATE OR REPLACE TEMP TABLE parts AS
SELECT * REPLACE (CASE WHEN alone THEN part ELSE -coarse END AS part)
FROM islands
WHERE alone OR answer IN ('not_found', 'seq_missing', 'overload');

CREATE OR REPLACE TEMP TABLE stretches AS
SELECT * REPLACE (
        -- Where most of a stretch was healthy (its buckets are long), its requests are those that were repeated.
        CASE WHEN answer = 'served' OR (once_per_seq(answer) AND 2 * hits < n) THEN hits ELSE n END AS n,
        -- Who was held all the time had no second as full as those of its own time.
        greatest(peak_rps, mean_rps) AS peak_rps),
    part < 0 AS slow
FROM added_up('parts')
WHERE (is_fast(hits, len(nodes), greatest(mean_rps, peak_rps)) OR hits >= slow_hits())
    -- Many clients behind one key: each of many connections asked about once, and then it was over. A network
    -- without clients may be any number of them.
    AND NOT (NOT once_per_seq(answer) AND ((NOT named AND conn_bits IS NULL AND answer <> 'web')
        OR (length_us <= CASE WHEN named THEN crowd_us() ELSE anonymous_us() END
            AND (n < crowd_per_conn() * connections(conn_bits, n)
                OR (conn_bits IS NULL AND NOT own_name(client, named) AND answer <> 'web')))))
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
