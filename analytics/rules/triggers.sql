-- Single clients' stretches and fleets in rows of one shape, each with the event that set it off, if there was
-- one.
CREATE OR REPLACE TEMP TABLE cases AS
WITH every AS (
    SELECT answer, [client] AS clients, named, [channel] AS channels, channel, nodes, n, hits, bytes_in, bytes_out,
        dur_us, guard_ms, n_overload + n_server_error AS n_refused, closed, first_us, last_us, seq_lo, seq_hi, head_lo,
        head_hi, retry_after_ms, release_lo, release_hi, ua, status_lo, status_hi, reason, request, blind, pulse,
        peak_rps, mean_rps, gap_ms, slow, solo, seqs, readers, false AS at_once, false AS insistent, false AS restarted,
        [] AS shared, false AS fleet,
        -- What set it off came before this; the lines of one moment are in no order.
        least(first_us + clocks_us(), last_us) AS onset_us
    FROM stretches
    UNION ALL BY NAME
    SELECT answer, clients, true AS named, channels, CASE WHEN len(channels) = 1 THEN channels[1] END AS channel,
        nodes, n, n AS hits, bytes_in, bytes_out, dur_us, guard_ms, n_refused, 0 AS closed, first_us, last_us,
        seq_lo, seq_hi, head_lo, head_hi, retry_after_ms, release_lo, release_hi, ua, status_lo, status_hi, reason,
        request, blind, pulse, peak_rps, n / greatest(1.0, (last_us - first_us) / 1e6) AS mean_rps,
        CAST(NULL AS DOUBLE) AS gap_ms, false AS slow, true AS solo, 0 AS seqs, 1 AS readers, at_once, insistent, restarted, shared,
        true AS fleet, node AS place,
        -- A few fail at any time, and before a cue: it comes before the fullest second.
        peak_us + 1000000 AS onset_us
    FROM fleets
)
SELECT row_number() OVER (ORDER BY first_us, fleet DESC, clients, channels, nodes, answer, last_us) AS id, * FROM every;

-- How plausible an event is for an answer: 0 is the likeliest.
CREATE OR REPLACE TEMP TABLE plausible AS
SELECT * FROM (
    SELECT answer, unnest(events) AS event, rank FROM (VALUES
        (['not_found', 'ended', 'fleet_miss'], ['channel_end'], 0),
        (['not_found', 'ended', 'fleet_miss'], restarts(), 1),
        -- Where 470 is said, or waited, there is a channel: its new life explains more than the end of its former
        -- one.
        (['seq_missing', 'abandoned'], ['channel_create'], 0),
        (['seq_missing', 'abandoned'], restarts(), 1),
        (['seq_missing', 'abandoned'], ['channel_end'], 2),
        (['zero_byte', 'served'], ['channel_end'], 0),
        (['zero_byte', 'served'], ['channel_create'], 1),
        (['zero_byte', 'served'], restarts(), 2),
        (['post'], ['channel_create', 'channel_end'], 0),
        (['post'], restarts(), 1),
        (['overload', 'server_error', 'rejected', 'web', 'fleet_overload', 'fleet_retry'],
            restarts() || ['config'], 0),
        (['overload', 'server_error', 'rejected', 'fleet_overload'], ['channel_create'], 1),
        (['fleet_herd'], restarts() || ['config'], 0),
        (['fleet_herd'], ['channel_end'], 1),
        (['fleet_herd'], ['channel_create'], 2)
    ) AS known (answers, events, rank), unnest(answers) AS one (answer)
);

CREATE OR REPLACE TEMP TABLE near AS
WITH of_channel AS (
    SELECT c.id, e.event, e.ts_us
    FROM (SELECT *, unnest(slices(first_us - end_before_us(), last_us + slow_gap_us())) AS slice FROM cases) c
        JOIN happened e ON e.channel = c.channel AND slice(e.ts_us) = c.slice
    WHERE e.event IN ('channel_create', 'channel_end') AND list_contains(c.nodes, e.node)
        AND e.ts_us BETWEEN c.first_us - end_before_us() AND c.last_us + slow_gap_us()
),
of_server AS (
    SELECT c.id, e.event, e.ts_us
    FROM (SELECT *, unnest(slices(first_us - restart_before_us(), onset_us)) AS slice
            FROM (SELECT *, unnest(nodes) AS node FROM cases)) c
        JOIN happened e ON e.node = c.node AND slice(e.ts_us) = c.slice
    WHERE list_contains(restarts() || ['config'], e.event)
        AND e.ts_us BETWEEN c.first_us - restart_before_us() AND c.onset_us
)
SELECT DISTINCT id, event, ts_us FROM (FROM of_channel UNION ALL FROM of_server);

-- Herds before which their server wrote no line for two seconds or more, and twice as long as at any time in the minute
-- before: it was restarted, also where the log has no events.
CREATE OR REPLACE TEMP TABLE silences AS
WITH seconds AS (
    SELECT c.id, second.at_us, second.at_us < c.first_us - 10000000 AS usual,
        (t.slots >> CAST((second.at_us - t.minute_us) // 1000000 AS INT)) & 1 = 0 AS silent
    FROM (SELECT *, unnest(slices(first_us - 130000000, onset_us)) AS slice FROM cases WHERE answer = 'fleet_herd') c
        JOIN traffic t ON t.node = c.nodes[1] AND slice(t.minute_us) = c.slice
            AND t.minute_us BETWEEN c.first_us - 130000000 AND c.onset_us,
        unnest(range(t.minute_us, t.minute_us + 60000000, 1000000)) AS second (at_us)
    WHERE second.at_us BETWEEN c.first_us - 70000000 AND c.onset_us
),
-- Seconds in a row have the same difference from their place in the order.
runs AS (
    SELECT id, usual, count(*) AS long
    FROM (SELECT *, at_us // 1000000 - row_number() OVER (PARTITION BY id, usual ORDER BY at_us) AS run
        FROM seconds WHERE silent)
    GROUP BY id, usual, run
)
SELECT id
FROM (SELECT id, count(*) FILTER (usual AND NOT silent) AS busy FROM seconds GROUP BY id)
    LEFT JOIN (SELECT id, max(long) FILTER (usual) AS long_usually, max(long) FILTER (NOT usual) AS long
        FROM runs GROUP BY id) USING (id)
WHERE busy >= 10 AND long >= greatest(2, 2 * coalesce(long_usually, 0));

CREATE OR REPLACE TEMP TABLE triggered AS
WITH ranked AS (
    SELECT id, n.event, n.ts_us, row_number() OVER (PARTITION BY id
            -- The last before it; if there was none, the first in its course.
            ORDER BY rank, n.ts_us > c.first_us + clocks_us(),
                CASE WHEN n.ts_us > c.first_us + clocks_us() THEN n.ts_us ELSE -n.ts_us END, n.event) AS place
    FROM near n JOIN cases c USING (id) JOIN plausible p ON p.answer = c.answer AND p.event = n.event
        LEFT JOIN lived l ON l.channel = c.channel
    WHERE n.ts_us <= onset_us
        AND (n.event <> 'channel_create' OR n.ts_us >= first_us - birth_before_us())
        -- What ended before the channel began again was another life's end.
        AND NOT (n.event = 'channel_end' AND EXISTS (SELECT 1 FROM near b WHERE b.id = n.id
            AND b.event = 'channel_create' AND b.ts_us > n.ts_us AND b.ts_us <= c.first_us))
        -- A restart does not explain a 404 for a channel that nobody had before.
        AND NOT (c.answer = 'not_found' AND n.event NOT IN ('channel_end', 'channel_create')
            AND coalesce(l.from_us > n.ts_us, true))
),
-- Somebody who waits for a channel to begin again stops asking when it does. Seqs begin again with each life.
lives AS (
    SELECT id, max(n.ts_us) FILTER (n.event = 'channel_end' AND n.ts_us <= onset_us) AS ended_us,
        -- The fault of the past: readers loop on an empty segment until the channel ends.
        max(n.ts_us) FILTER (n.event = 'channel_end' AND n.ts_us > onset_us
            AND n.ts_us <= last_us + gap_us()) AS ends_us,
        count(*) FILTER (n.event = 'channel_create' AND n.ts_us > first_us AND n.ts_us <= last_us) AS births,
        max(n.ts_us) FILTER (n.event = 'channel_create') AS last_birth_us
    FROM near n JOIN cases c USING (id) GROUP BY id
)
SELECT c.*, r.event AS trigger, r.ts_us AS trigger_us, l.ended_us, l.ends_us, 1 + coalesce(l.births, 0) AS lives,
    CASE WHEN l.last_birth_us >= coalesce(l.ended_us, c.first_us) THEN l.last_birth_us END AS born_us,
    v.from_us AS lived_from_us, v.until_us AS lived_until_us
FROM cases c LEFT JOIN ranked r ON r.id = c.id AND r.place = 1 LEFT JOIN lives l ON l.id = c.id
    LEFT JOIN lived v ON v.channel = c.channel;
