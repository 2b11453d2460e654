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

CREATE OR REPLACE TEMP MACRO once_per_seq(answer) AS answer IN ('zero_byte', 'post', 'served');

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
