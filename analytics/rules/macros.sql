-- What several steps ask of a row. Loaded before them; paste it into the shell before a step.

-- Sums stay 64-bit integers.
CREATE OR REPLACE TEMP MACRO total(value) AS CAST(sum(value) AS BIGINT);
CREATE OR REPLACE TEMP MACRO total_if(value, condition) AS
    CAST(coalesce(sum(CASE WHEN condition THEN value END), 0) AS BIGINT);

CREATE OR REPLACE TEMP MACRO is_failure(answer) AS
    answer IN ('overload', 'server_error', 'not_found', 'seq_missing', 'rejected');

CREATE OR REPLACE TEMP MACRO is_bad(answer) AS is_failure(answer) OR answer = 'web';

-- Whether it is a path of some web server, and no channel: method, path, status.
CREATE OR REPLACE TEMP MACRO is_path(channel) AS coalesce(instr(channel, ' /') > 0, false);

-- Refused by a server that has too much to do; one that goes away sends its clients away.
CREATE OR REPLACE TEMP MACRO is_refused(answer, reason) AS answer = 'overload' AND coalesce(reason <> 'shutdown', true);

-- Refusals and failures of a server are one kind of what a crowd retries, and what is not there is another.
CREATE OR REPLACE TEMP MACRO retried_as(answer) AS CASE
    WHEN answer IN ('overload', 'server_error') THEN 'fleet_retry'
    WHEN answer IN ('web', 'not_found') THEN 'fleet_miss' END;

CREATE OR REPLACE TEMP MACRO once_per_seq(answer) AS answer IN ('zero_byte', 'post', 'served');

-- Events of a restart, of the server or of one of its workers.
CREATE OR REPLACE TEMP MACRO restarts() AS
    ['server_start', 'server_ready', 'worker_restart', 'drain', 'server_stop'];

-- Minutes: what is near in time is joined by the minutes that it touches and only then compared, because a join by the
-- times alone looks at every pair.
CREATE OR REPLACE TEMP MACRO slice(us) AS CAST(us AS BIGINT) // 60000000;
CREATE OR REPLACE TEMP MACRO slices(since, until) AS range(slice(since), slice(until) + 1);
-- What lies for its greater half in another's time has its middle in it.
CREATE OR REPLACE TEMP MACRO middle(since, until) AS since + (until - since) // 2;

-- How many connections 62 bits stand for: at least 1, at most n; 1 where the log does not say.
CREATE OR REPLACE TEMP MACRO connections(bits, n) AS
    CASE WHEN bits IS NULL THEN 1
        ELSE greatest(1, least(n, CAST(round(CASE WHEN bit_count(bits) < 57
            THEN -62 * ln(1 - bit_count(bits) / 62.0) ELSE n END) AS BIGINT))) END;

-- A client's own time, microseconds: a stretch without what the storm guard held back (guard_ms). If more was held
-- than there was time, several clients share the key; then at least a tenth of the time is taken to be their own.
-- The last request's hold comes after the stretch; no hold is longer than a second.
CREATE OR REPLACE TEMP MACRO sharing(length_us, guard_ms) AS
    greatest(1.0, ceil((coalesce(guard_ms, 0) * 1000.0 - 1000000) / greatest(1.0, length_us)));
CREATE OR REPLACE TEMP MACRO own_us(length_us, guard_ms, n) AS
    greatest(CASE WHEN sharing(length_us, guard_ms) > 1 THEN 0.1 * length_us ELSE 0.0 END,
        length_us - coalesce(guard_ms, 0) * 1000.0 * (n - 1) / n / sharing(length_us, guard_ms));

-- Whether a client's key is what it calls itself: neither a hash that a server made nor an address.
CREATE OR REPLACE TEMP MACRO own_name(client, named) AS
    coalesce(named AND NOT regexp_matches(client, '^[0-9a-f]{16}$')
        AND NOT regexp_matches(client, '^[0-9a-fA-F]*[.:][0-9a-fA-F.:]*($|[#+])'), false);

-- How many readers share a stretch's key. Readers behind one NAT get every segment once each, over connections of
-- their own: up to four connections are exact, beyond that an estimate with a slack of a half. A few segments that
-- are asked for all the time are a loop whatever the connections. Where the log does not say the connection, any
-- number of readers may share a key that is not a name of their own.
CREATE OR REPLACE TEMP MACRO readers_by_connection(answer, n, seqs, busy_s, length_us, conn_bits, waited) AS
    CASE WHEN answer = 'post' OR (seqs <= same_seq_few() AND length_us >= same_seq_us()
            AND busy_s * 1e6 >= same_seq_share() * length_us) THEN 1
        WHEN conn_bits IS NULL THEN n
        -- A crowd waits for a segment until it closes empty; a loop is answered at once.
        WHEN answer = 'zero_byte' AND seqs <= same_seq_few() AND 2 * waited < n AND length_us > crowd_us()
            AND 2e6 * busy_s >= length_us THEN 1
        WHEN connections(conn_bits, n) <= 4 THEN least(n, connections(conn_bits, n))
        ELSE least(n, CAST(ceil(connections(conn_bits, n) * 1.5) AS BIGINT)) END;
-- Behind a proxy the connections are the proxy's, and only a name tells one reader from a crowd. One name may
-- stand for all users of an application: a crowd's rush for a segment is over in a moment, and each of them waits
-- for new ones.
CREATE OR REPLACE TEMP MACRO readers(answer, n, seqs, busy_s, length_us, conn_bits, client, named, peak_rps, own_s,
        waited) AS
    CASE WHEN own_name(client, named)
        AND (conn_bits IS NULL OR (seqs <= same_seq_few() AND length_us > crowd_us() * seqs
                AND 2 * n >= peak_rps * own_s AND 2 * busy_s * 1e6 >= length_us)
            OR (connections(conn_bits, n) > 8 AND 2 * waited BETWEEN seqs AND 3 * seqs)) THEN 1
        ELSE readers_by_connection(answer, n, seqs, busy_s, length_us, conn_bits, waited) END;

-- How many lines count towards a storm: all, or the repeats and the request that they repeat. Requests that waited
-- are first ones: up to two more readers than were counted, since two connections may share a bit.
CREATE OR REPLACE TEMP MACRO hits(answer, n, seqs, waited, readers) AS
    CASE WHEN once_per_seq(answer)
        THEN greatest(0, n - greatest(seqs * readers, least(waited, seqs * (readers + 2))) + 1) ELSE n END;

-- So many so quickly that it is a storm whatever the rest of its time. Who asks each of ten servers once is in no
-- hurry.
CREATE OR REPLACE TEMP MACRO is_fast(hits, nodes, rps) AS
    hits >= greatest(fast_hits(), 2 * nodes) AND rps >= fast_rps();

-- In a log with times in whole seconds more or less time may have passed, by a second: it must not find more than an
-- exact one.
CREATE OR REPLACE TEMP MACRO clock_s(blind) AS CASE WHEN instr(blind, 'ts_us') > 0 THEN 1.0 ELSE 0.0 END;

-- Whether requests come as evenly as one program's: people behind one address come by chance, so that the number of a
-- second varies by as much as it is, and a pause by its own length. Borders are seconds that are not whole.
CREATE OR REPLACE TEMP MACRO varies(counts, n) AS list_sum([one * one FOR one IN counts]) / n
    - (list_sum(counts) / n) * (list_sum(counts) / n);
CREATE OR REPLACE TEMP MACRO is_steady(pulse, rps) AS coalesce(CASE WHEN len(pulse) < 6 THEN false
    WHEN rps >= 1 THEN 3 * varies([one.n FOR one IN pulse[2:-2]],
            (pulse[-2].from_us // 1000000 - pulse[2].from_us // 1000000 + 1.0))
        < list_sum([one.n FOR one IN pulse[2:-2]]) / (pulse[-2].from_us // 1000000 - pulse[2].from_us // 1000000 + 1.0)
    ELSE 4e12 * varies([(pulse[i + 1].from_us - pulse[i].from_us) / 1e6 FOR i IN range(1, len(pulse))], len(pulse) - 1.0)
        < pow((pulse[-1].from_us - pulse[1].from_us) / (len(pulse) - 1.0), 2) END, false);

-- Monitors and balancers ask on at their pace while what they watch fails: they retry nothing.
CREATE OR REPLACE TEMP MACRO is_probe(ua) AS coalesce(regexp_matches(lower(ua),
    'kube-probe|health|prometheus|blackbox|uptime|pingdom|statuscake|googlehc|haproxy|consul|nagios|icinga|zabbix|monit'),
    false);

-- How long after the first of some requests they were made, in the mean: half of their time, or, if their pauses grow,
-- less.
CREATE OR REPLACE TEMP MACRO mean_us(n, first_us, last_us) AS
    sum(n * (first_us / 2.0 + last_us / 2.0)) / sum(n) - min(first_us);

-- Rows of one part of a key as one row, with what follows from the sums: "answer" (the commonest kind of failure),
-- "hits" (lines that count), "length_us", "own_s" (its time without the guard's holds), "mean_rps" and "gap_ms"
-- (both of the own time).
CREATE OR REPLACE TEMP MACRO added_up(parts) AS TABLE
SELECT *, hits / greatest(1.0, own_s) AS mean_rps, CASE WHEN n > 1 THEN own_s * 1000 / (n - 1) END AS gap_ms
FROM (
    SELECT *, hits(answer, n, seqs, waited, readers) AS hits
    FROM (
        SELECT *, readers(answer, n, seqs, busy_s, length_us - 1e6 * clock_s(blind), conn_bits, client, named, peak_rps,
            own_s, waited) AS readers
        FROM (
            SELECT *, last_us - first_us AS length_us,
                own_us(last_us - first_us, guard_ms, n) / 1e6 + clock_s(blind) AS own_s,
                CASE WHEN family <> 'failure' THEN family ELSE list_max([(n_overload, 'overload'),
                    (n_server_error, 'server_error'), (n_not_found, 'not_found'), (n_seq_missing, 'seq_missing'),
                    (n_rejected, 'rejected')])[2] END AS answer
            FROM (
                SELECT key, chain, part, any_value(client) AS client, any_value(named) AS named,
                    any_value(channel) AS channel, any_value(place) AS place, any_value(family) AS family,
                    max(coarse) AS coarse,
                    total(n) AS n, total(bytes_in) AS bytes_in, total(bytes_out) AS bytes_out,
                    total(dur_us) AS dur_us, total(guard_ms) AS guard_ms, total(closed) AS closed,
                    total(waited) AS waited, total(seqs) AS seqs, sum(busy_s) AS busy_s,
                    total(n_overload) AS n_overload, total(n_server_error) AS n_server_error,
                    total(n_not_found) AS n_not_found, total(n_seq_missing) AS n_seq_missing,
                    total(n_rejected) AS n_rejected,
                    min(first_us) AS first_us, max(last_us) AS last_us, max(peak_rps) AS peak_rps,
                    min(seq_lo) AS seq_lo, max(seq_hi) AS seq_hi, min(head_lo) AS head_lo, max(head_hi) AS head_hi,
                    bit_or(conn_bits) AS conn_bits, max(retry_after_ms) AS retry_after_ms,
                    list_sort(list_distinct(flatten(list(nodes)))) AS nodes,
                    min(release_lo) AS release_lo, max(release_hi) AS release_hi, max(ua) AS ua,
                    min(status_lo) AS status_lo, max(status_hi) AS status_hi, max(reason) AS reason,
                    min(request) AS request, max(blind) AS blind,
                    flatten(list(pulse ORDER BY first_us)) AS pulse
                FROM query_table(parts)
                GROUP BY key, chain, part
            )
        )
    )
);

-- Many who each try the same request again, at a pace that no single one is accused of: one row for each client and
-- request, with the group in time ("island") that it belongs to. Of what is not
-- there, each path and each channel is a kind of its own. A group is a storm by its retries, if they do not slow down.
CREATE OR REPLACE TEMP MACRO retries_of(refusals) AS TABLE
WITH rows AS (
    SELECT *, retried_as(answer) AS fleet, CASE WHEN fleet = 'fleet_miss' THEN channel ELSE '' END AS kind
    FROM query_table(refusals)
    WHERE fleet IS NOT NULL AND coalesce(reason <> 'shutdown', true)
),
paused AS (
    SELECT *, first_us - lag(last_us) OVER one AS pause_us FROM rows
    WINDOW one AS (PARTITION BY node, fleet, kind, client, channel ORDER BY bucket_us, first_us)
),
-- "mean_us": how long after the first of its requests they were made, in the mean.
tried AS (
    SELECT node, fleet, kind, client, channel, chain, total(n) AS n, min(first_us) AS first_us,
        max(last_us) AS last_us, max(retry_after_ms) AS retry_after_ms, max(ua) AS ua,
        -- A server that fails after a minute is asked once a minute by who does not wait at all.
        CASE WHEN fleet = 'fleet_retry' THEN coalesce(total(dur_us) / total(n), 0) ELSE 0 END AS took_us,
        CASE WHEN count(*) = count_if(answer = 'server_error') AND total(n) >= fast_hits() THEN slow_gap_us()
            ELSE gap_us() END AS patience_us,
        mean_us(n, first_us, last_us) AS mean_us
    FROM (
        SELECT *, sum(CASE WHEN pause_us <= slow_gap_us() THEN 0 ELSE 1 END) OVER (
            PARTITION BY node, fleet, kind, client, channel ORDER BY bucket_us, first_us) AS chain
        FROM paused
    )
    GROUP BY node, fleet, kind, client, channel, chain
),
good AS (
    SELECT client, channel, bucket_us, total(n) AS n FROM candidate WHERE answer = 'cured' GROUP BY ALL
),
helped AS (
    SELECT t.node, t.fleet, t.client, t.channel, t.chain,
        total_if(g.n, g.bucket_us BETWEEN first_us - 1000000 AND last_us + 2000000) AS cured,
        total_if(g.n, g.bucket_us NOT BETWEEN first_us - 1000000 AND last_us + 2000000) * 1e6
            / greatest(1000000, greatest(0, first_us - min(g.bucket_us))
                + greatest(0, max(g.bucket_us) + 1000000 - last_us)) AS usual_rps
    FROM (SELECT *, unnest(slices(first_us - 120000000, last_us + 120000000)) AS slice FROM tried WHERE n >= tries()) t
        JOIN good g ON g.client = t.client AND g.channel = t.channel AND slice(g.bucket_us) = t.slice
        AND g.bucket_us BETWEEN first_us - 120000000 AND last_us + 120000000
    GROUP BY t.node, t.fleet, t.client, t.channel, t.chain, first_us, last_us
),
-- "again": it asks again sooner than a poll would, or than it was told, and nothing has helped.
judged AS (
    SELECT t.*, n >= tries() AND (last_us - first_us) / (n - 1) - took_us <= patience_us AND NOT is_probe(ua)
        AND 2 * coalesce(cured, 0) < n AND NOT (coalesce(cured, 0) > 0 AND last_us - first_us < crowd_us())
        AND NOT coalesce(usual_rps > 0 AND (n - 1) * 1e6 / greatest(1, last_us - first_us) <= 1.5 * usual_rps, false)
        AND NOT coalesce((last_us - first_us) / (n - 1) >= early() * 1000 * retry_after_ms AND retry_after_ms > 0, false) AS again
    FROM tried t LEFT JOIN helped h ON h.node = t.node AND h.fleet = t.fleet AND h.client = t.client
        AND h.channel = t.channel AND h.chain = t.chain
),
islands AS (
    SELECT *, sum(starts) OVER (near ROWS UNBOUNDED PRECEDING) AS island
    FROM (
        SELECT *, CASE WHEN first_us - max(last_us) OVER (near ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
            <= gap_us() THEN 0 ELSE 1 END AS starts
        FROM judged WINDOW near AS (PARTITION BY node, fleet, kind ORDER BY first_us, last_us)
    )
    WINDOW near AS (PARTITION BY node, fleet, kind ORDER BY first_us, last_us)
),
storms AS (
    SELECT node, fleet, kind, island, min(first_us) AS since_us, max(last_us) AS until_us
    FROM islands GROUP BY node, fleet, kind, island
    HAVING count(DISTINCT client) FILTER (again) >= herd_clients()
        AND 2 * total_if(n, again) >= total(n)
        AND (fleet = 'fleet_retry' OR total_if(n, again) >= slow_hits() * count(*) FILTER (again))
        AND sum(mean_us) FILTER (again) >= steady() * sum(last_us - first_us) FILTER (again)
        AND (total(n) >= fast_rps() * greatest(1, (max(last_us) - min(first_us)) / 1e6)
            OR total_if(n, again) >= 10 * slow_hits() AND total_if(n, again) >= fast_hits() * count(*) FILTER (again))
)
SELECT i.fleet AS answer, i.node, s.since_us, s.until_us, i.client, i.channel, i.first_us, i.last_us
FROM islands i JOIN storms s ON s.node = i.node AND s.fleet = i.fleet AND s.kind = i.kind AND s.island = i.island;

-- Rows with what the crowd of a path tells under the name of all of its servers (spread.sql); "event" is the server.
CREATE OR REPLACE TEMP MACRO placed(rows) AS TABLE
SELECT r.* REPLACE (coalesce(s.node, r.node) AS node, CASE WHEN s.node IS NULL THEN r.event ELSE r.node END AS event)
FROM query_table(rows) r LEFT JOIN (SELECT *, unnest(slices(first_us, last_us)) AS slice FROM spread) s
    ON s.client = r.client AND s.channel = r.channel AND s.answer = retried_as(r.answer) AND r.named
    AND slice(r.first_us) = s.slice AND r.first_us BETWEEN s.first_us AND s.last_us;
