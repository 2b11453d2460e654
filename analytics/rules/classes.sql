-- Why is this an incident? A case is a stretch of one client on one channel (stretches.sql: so many so fast), or a fleet
-- (fleets.sql: so many clients in one second). Here it gets its class, by what was answered ("answer") and how: read the
-- CASE from the top. What repeats in a way that is nobody's fault has no class and is dropped; what has one is told.
--   ahead: the seqs were at or beyond the head. rises: they counted up. unhurried: slower than a loop.
--   slow: a loop that pauses for longer. told_ms: how long the client had to wait before it asked again.
CREATE OR REPLACE TEMP TABLE classed AS
WITH told AS (
    SELECT *,
        -- With the head unknown, a range of seqs is a sweep, one seq of a new channel is ahead, and any other is
        -- behind.
        coalesce(seq_lo >= head_lo, seq_hi > seq_lo OR seq_hi = 0 OR coalesce(trigger = 'channel_create', false),
            head_hi = 0, true) AS ahead,
        coalesce(2 * (seq_hi - seq_lo + 1) >= n, false) AS rises,
        mean_rps < not_found_rps() AND peak_rps < fast_rps() AS unhurried,
        coalesce(early() * retry_after_ms, 1000) AS told_ms
    FROM triggered
    -- A channel's next life begins at seq 0 again: what was asked for in each of its lives was asked for once.
    WHERE NOT (once_per_seq(answer) AND lives > 1
        AND NOT (hits - (lives - 1) * seqs * readers >= slow_hits()
            OR (hits - (lives - 1) * seqs * readers >= fast_hits() AND peak_rps >= fast_rps())))
)
SELECT * FROM (
SELECT *, CASE answer
    -- Where the format does not say that the channel has ended, its events may.
    WHEN 'zero_byte' THEN CASE WHEN blind LIKE '%eos%' AND ended_us IS NOT NULL THEN 'ended_loop'
        ELSE 'zero_byte_loop' END
    WHEN 'served' THEN 'same_segment_loop'
    WHEN 'ended' THEN 'ended_loop'
    WHEN 'abandoned' THEN 'abandoned_loop'
    WHEN 'post' THEN 'repost_loop'
    WHEN 'server_error' THEN CASE
        -- At the pace of a health check, which is the same whatever the answer.
        WHEN is_path(channel) AND mean_rps * (hits - 1) / hits <= 1.02 * overload_rps() AND peak_rps < fast_rps() THEN NULL
        ELSE 'server_error_loop' END
    WHEN 'rejected' THEN 'rejected_loop'
    -- Of other servers' routes little is known: a slow 404 may be a poll that is meant so.
    -- And beside our own traffic they are scanners' mostly, which come to an end by themselves.
    WHEN 'web' THEN CASE WHEN generic() = 0 AND (SELECT count(*) FROM quality WHERE answer IN ('served', 'zero_byte',
            'ended', 'abandoned', 'post', 'not_found', 'seq_missing', 'rejected')) > 0 THEN NULL
        WHEN coalesce(status_lo, 499) <> 404 OR mean_rps >= not_found_rps() OR peak_rps >= fast_rps()
        THEN 'web_loop' END
    -- Good answers that are no progress: a redirect that leads back, an empty answer to a poll that does not wait, or
    -- the same page. A redirect ends in a browser after some twenty; the others must go on, and steadily.
    WHEN 'again' THEN CASE
        WHEN generic() = 0 AND (SELECT count(*) FROM quality WHERE answer IN ('served', 'zero_byte',
            'ended', 'abandoned', 'post', 'not_found', 'seq_missing', 'rejected')) > 0 THEN NULL
        WHEN status_lo BETWEEN 300 AND 399 AND status_lo <> 304 THEN 'web_loop'
        WHEN solo AND last_us - first_us >= same_seq_us() - 1000000 AND peak_rps <= 3 * mean_rps
            AND mean_rps >= CASE WHEN status_lo <> 304 AND (bytes_out = 0 OR status_lo < 200 OR status_lo = 204)
                THEN again_rps() ELSE fast_rps() END THEN 'web_loop' END
    WHEN 'seq_missing' THEN CASE
        -- Who goes on from the head each time it fell behind leaves seqs out, each time.
        WHEN unhurried AND seq_hi - seq_lo + 1 >= 2 * n AND NOT coalesce(seq_lo >= head_lo, false) THEN NULL
        -- Asking about once a second whether the next segment is there is waiting for it; falling behind now and
        -- then is no loop; asking on past a head that stands still is one.
        WHEN (ahead OR head_hi IS NULL) AND unhurried AND NOT rises AND coalesce(seq_hi <= head_hi + 1, true) THEN NULL
        WHEN ahead AND slow AND NOT (head_lo IS NOT DISTINCT FROM head_hi AND rises) THEN NULL
        WHEN ahead THEN 'seq_ahead_sweep'
        WHEN NOT slow THEN 'seq_behind_loop' END
    WHEN 'not_found' THEN CASE
        WHEN NOT slow OR mean_rps >= not_found_rps() THEN 'not_found_loop'
        -- It has ended: an event says so, or the refusals do, or it gave other answers before and none since.
        WHEN (ended_us IS NOT NULL OR 2 * closed >= n OR lived_until_us <= first_us + gap_us()) AND born_us IS NULL
            THEN 'not_found_drip' END
    WHEN 'overload' THEN CASE
        -- Polite: it waits about as long as it was told; or, told nothing, it is slow.
        WHEN retry_after_ms > 0 AND gap_ms >= told_ms AND peak_rps <= 1 + 1000 / greatest(1, told_ms) THEN NULL
        WHEN coalesce(retry_after_ms, 0) = 0 AND (slow OR (mean_rps * (hits - 1) / hits <= 1.02 * overload_rps()
            AND peak_rps < fast_rps()))
            THEN NULL
        ELSE 'overload_client' END
    WHEN 'fleet_overload' THEN 'overload_amplification'
    WHEN 'fleet_retry' THEN CASE WHEN status_lo NOT IN (429, 503) AND status_hi NOT IN (429, 503)
            THEN 'server_error_loop' WHEN at_once THEN 'thundering_herd' ELSE 'overload_amplification' END
    -- Who waits for a channel that begins then has waited; who asks on after its end, or for one that never begins,
    -- loops.
    WHEN 'fleet_miss' THEN CASE WHEN is_path(channel) THEN 'web_loop'
        WHEN born_us IS NOT NULL OR lived_from_us BETWEEN first_us AND last_us + slow_gap_us() THEN NULL
        WHEN mean_rps < not_found_rps() * len(clients)
            AND (ended_us IS NOT NULL OR lived_until_us <= first_us + gap_us()) THEN 'not_found_drip'
        ELSE 'not_found_loop' END
    WHEN 'fleet_herd' THEN CASE
        WHEN at_once OR list_contains(restarts() || ['config'], trigger) OR restarted OR id IN (FROM silences)
            THEN 'thundering_herd'
        WHEN insistent AND (trigger = 'channel_end' OR nodes[1] NOT IN (SELECT node FROM happened))
        THEN 'thundering_herd' END
    END AS class
FROM told
)
WHERE class IS NOT NULL;
