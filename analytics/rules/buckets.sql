-- Who got what, by bucket of time, and which island in time each bucket belongs to: what one client kept getting
-- on one channel without a longer pause ("part"), or with pauses that a slow loop may have ("coarse"). The key has
-- no seq (a client that sweeps upwards would escape it) and no release (the client's own word). Failures share one
-- key, so that nobody stays below a threshold by collecting 404, 470 and 503 in turn, and nobody hides behind a load
-- balancer (but a segment is had once from each server); where one kind of failure follows another, that is a new island.
CREATE OR REPLACE TEMP TABLE buckets AS
WITH watched AS (
    SELECT *, CASE WHEN once_per_seq(answer) THEN node ELSE '' END AS place,
        CASE WHEN is_failure(answer) THEN 'failure' ELSE answer END AS family,
        concat_ws(chr(0), client, named, coalesce(channel, chr(1)), place, family) AS name
    FROM candidate WHERE answer <> 'cured'
),
-- Most of what fails does so now and then: whose lines are fewer than any storm's are not looked at. A number for
-- each of the others, because rows are sorted by it several times.
keys AS MATERIALIZED (
    SELECT name, row_number() OVER () AS key FROM watched GROUP BY name HAVING sum(n) >= least(fast_hits(), slow_hits())
),
-- Between two chains is a pause that no storm spans.
chained AS (
    SELECT *,
        CAST(sum(starts) OVER (PARTITION BY key ORDER BY bucket_us, first_us, node, answer
            ROWS UNBOUNDED PRECEDING) AS BIGINT) AS chain
    FROM (
        SELECT *, CASE
            WHEN first_us - lag(last_us) OVER who <= slow_gap_us() OR bucket_us = lag(bucket_us) OVER who THEN 0
            ELSE 1 END AS starts
        FROM watched JOIN keys USING (name)
        WINDOW who AS (PARTITION BY key ORDER BY bucket_us, first_us, node, answer)
    )
),
enough AS (
    SELECT * FROM chained
    WHERE (key, chain) IN (SELECT (key, chain) FROM chained GROUP BY key, chain
        HAVING sum(n) >= least(fast_hits(), slow_hits()))
),
buckets AS (
    SELECT key, chain, bucket_us, any_value(client) AS client, any_value(named) AS named,
        any_value(channel) AS channel, any_value(place) AS place, any_value(family) AS family,
        total(n) AS n, total(bytes_in) AS bytes_in, total(bytes_out) AS bytes_out, total(dur_us) AS dur_us,
        total(guard_ms) AS guard_ms, total(closed) AS closed, total(waited) AS waited,
        total(distinct_seqs) AS distinct_seqs,
        total_if(n, answer = 'overload') AS n_overload,
        total_if(n, answer = 'server_error') AS n_server_error,
        total_if(n, answer = 'not_found') AS n_not_found,
        total_if(n, answer = 'seq_missing') AS n_seq_missing,
        total_if(n, answer = 'rejected') AS n_rejected,
        min(first_us) AS first_us, max(last_us) AS last_us,
        min(seq_lo) AS seq_lo, max(seq_hi) AS seq_hi, bit_or(seq_bits) AS seq_bits,
        min(head_lo) AS head_lo, max(head_hi) AS head_hi,
        bit_or(conn_bits) AS conn_bits, bit_or(slots) AS slots, max(retry_after_ms) AS retry_after_ms,
        list_sort(list(DISTINCT node)) AS nodes, min(release_lo) AS release_lo, max(release_hi) AS release_hi,
        max(ua) AS ua, min(status_lo) AS status_lo, max(status_hi) AS status_hi, max(reason) AS reason,
        min(request) AS request, max(blind) AS blind
    FROM enough
    GROUP BY key, chain, bucket_us
),
-- Of answers that are right once per seq: seqs that the bucket before did not have, and only buckets that repeat.
-- Bits say no more than modulo 62, so the ranges have to overlap as well.
neighbours AS (
    SELECT *,
        coalesce((seq_bits & lag(seq_bits) OVER near) <> 0
            AND seq_lo <= lag(seq_hi) OVER near AND lag(seq_lo) OVER near <= seq_hi
            AND first_us - lag(last_us) OVER near <= gap_us(), false) AS again,
        coalesce((seq_bits & lead(seq_bits) OVER near) <> 0
            AND seq_lo <= lead(seq_hi) OVER near AND lead(seq_lo) OVER near <= seq_hi
            AND lead(first_us) OVER near - last_us <= gap_us(), false) AS next_again,
        least(bit_count(seq_bits & lag(seq_bits) OVER near),
            least(seq_hi, lag(seq_hi) OVER near) - greatest(seq_lo, lag(seq_lo) OVER near) + 1) AS n_shared
    FROM buckets
    WINDOW near AS (PARTITION BY key, chain ORDER BY bucket_us)
),
repeating AS (
    SELECT *, greatest(0, distinct_seqs - CASE WHEN again THEN n_shared ELSE 0 END) AS seqs
    FROM neighbours
    WHERE NOT once_per_seq(family) OR n > distinct_seqs OR again OR next_again
),
-- The pause before a bucket, the rate around it (a burst need not keep to the borders of seconds), the failures
-- near it.
kinds AS (
    SELECT *, n - greatest(0, seqs - 1) AS row_hits,
        CASE WHEN family <> 'failure' THEN 1 ELSE
            CAST(n_overload > 0 AS INT) | CAST(n_server_error > 0 AS INT) << 1 | CAST(n_not_found > 0 AS INT) << 2
            | CAST(n_seq_missing > 0 AS INT) << 3 | CAST(n_rejected > 0 AS INT) << 4 END AS kinds
    FROM repeating
),
rated AS (
    SELECT *,
        first_us - lag(last_us) OVER near AS pause,
        lag(kinds) OVER near AS kinds_last,
        -- Null for the first bucket, and for the last.
        lag(kinds) OVER near | lag(kinds, 2, 0) OVER near | lag(kinds, 3, 0) OVER near | lag(kinds, 4, 0) OVER near
            AS kinds_before,
        lead(kinds) OVER near | lead(kinds, 2, 0) OVER near | lead(kinds, 3, 0) OVER near
            | lead(kinds, 4, 0) OVER near AS kinds_after,
        greatest(row_hits / greatest(1.0, own_us(last_us - first_us, guard_ms, n) / 1e6),
            -- A bucket of segments is a minute: a burst is as long as the seconds in which there was something.
            CASE WHEN family = 'served' AND n >= browse_times() * distinct_seqs
                THEN row_hits / greatest(1.0, bit_count(slots) - 1) END,
            -- Buckets of posts and segments are long: what two of them hold need not have come at once.
            CASE WHEN family NOT IN ('post', 'served') THEN (row_hits + lag(row_hits) OVER near)
                / greatest(1.0, clock_s(blind) + own_us(last_us - lag(first_us) OVER near,
                    coalesce(guard_ms, 0) + coalesce(lag(guard_ms) OVER near, 0), n + lag(n) OVER near) / 1e6)
                END) AS peak_rps,
        CASE WHEN family = 'served' THEN CAST(bit_count(slots) AS DOUBLE) ELSE 1.0 END AS busy_s
    FROM kinds
    WINDOW near AS (PARTITION BY key, chain ORDER BY bucket_us)
),
-- One kind of failure follows another, rather than taking turns with it, if for four buckets neither comes back.
starting AS (
    SELECT *, coalesce((kinds & kinds_before) = 0 AND coalesce(kinds_last & kinds_after, 0) = 0, false) AS another
    FROM rated
),
numbered AS (
    SELECT *,
        CAST(sum(CASE WHEN pause <= gap_us() AND NOT another THEN 0 ELSE 1 END) OVER near AS BIGINT) AS part,
        CAST(sum(CASE WHEN pause <= slow_gap_us() AND NOT another THEN 0 ELSE 1 END) OVER near AS BIGINT) AS coarse
    FROM starting
    WINDOW near AS (PARTITION BY key, chain ORDER BY bucket_us)
)
SELECT *, [{'from_us': first_us, 'until_us': last_us, 'n': n}] AS pulse
FROM numbered;
