-- Incidents: what an SRE is told. Counts are without double counting: what a fleet tells is not told by its
-- members.
CREATE OR REPLACE TEMP TABLE pulses AS
WITH every AS (
    SELECT incident, id, answer, fleet, place, nodes, clients[1] AS client, is_bad(answer) AS failure,
        unnest(pulse) AS pulse
    FROM episodes
),
fleet AS (
    SELECT incident, answer, place, nodes, clients, first_us, last_us, unnest(slices(first_us, last_us)) AS slice
    FROM episodes WHERE fleet
),
told AS (
    SELECT DISTINCT e.id, e.pulse.from_us AS from_us
    FROM every e JOIN (
            SELECT incident, nodes, slice, unnest(clients) AS client, first_us, last_us FROM fleet
        ) f ON f.incident = e.incident AND f.client = e.client AND NOT e.fleet AND e.failure
        AND slice(e.pulse.from_us) = f.slice AND e.pulse.from_us BETWEEN f.first_us AND f.last_us
        AND list_has_any(e.nodes, f.nodes)
),
-- Fleets of one node at one time are made of the same refusals: the overload tells them, else the herd.
twice AS (
    SELECT DISTINCT e.id, e.pulse.from_us AS from_us
    FROM every e JOIN fleet f
        ON f.incident = e.incident AND f.place = e.place AND slice(e.pulse.from_us) = f.slice AND (f.answer = 'fleet_overload'
            AND e.answer IN ('fleet_herd', 'fleet_retry') OR f.answer = 'fleet_herd' AND e.answer = 'fleet_retry')
        AND e.pulse.from_us BETWEEN f.first_us AND f.last_us
)
SELECT e.incident, e.id, e.pulse.from_us AS from_us, e.pulse.until_us AS until_us, e.pulse.n AS n
FROM every e ANTI JOIN (FROM told UNION FROM twice) t ON t.id = e.id AND t.from_us = e.pulse.from_us;

-- The share of each case that no fleet tells.
CREATE OR REPLACE TEMP TABLE parts_of_incidents AS
SELECT e.*, coalesce(p.n, 0) / greatest(1, list_sum([one.n FOR one IN e.pulse])) AS part
FROM episodes e LEFT JOIN (SELECT id, total(n) AS n FROM pulses GROUP BY id) p USING (id);

-- The peak is that of the sum over all clients.
CREATE OR REPLACE TEMP TABLE peaks AS
SELECT incident, max(n) AS peak_rps
FROM (
    SELECT incident, second, sum(n) AS n
    FROM (
        SELECT incident, n / (until_us // 1000000 - from_us // 1000000 + 1.0) AS n,
            unnest(range(from_us // 1000000, until_us // 1000000 + 1)) AS second
        FROM pulses
    )
    GROUP BY incident, second
)
GROUP BY incident;

CREATE OR REPLACE TEMP TABLE phases AS
SELECT incident, class, CAST(round(sum(n * part)) AS BIGINT) AS n, min(first_us) AS first_us, max(last_us) AS last_us,
    bool_or(fleet) AS fleet, len(list_distinct(flatten(list(clients)))) AS clients
FROM parts_of_incidents WHERE part > 0
GROUP BY incident, class;

CREATE OR REPLACE TEMP TABLE roots AS
SELECT p.incident,
    -- A fleet is the root of what its members did; else what came first is. Many clients that each loop on
    -- refusals amplify together.
    CASE WHEN p.class = 'overload_client' AND p.clients >= many_clients() THEN 'overload_amplification'
        ELSE p.class END AS class,
    arg_min(e.trigger, (e.first_us, e.id)) FILTER (e.trigger IS NOT NULL) AS trigger,
    arg_min(e.trigger_us, (e.first_us, e.id)) FILTER (e.trigger IS NOT NULL) AS trigger_us,
    max(e.ends_us) AS ends_us, bool_or(e.head_hi > e.seq_hi) AS passed,
    -- Whether it came back sooner than it was told.
    bool_or(e.retry_after_ms > 0 AND (e.gap_ms < early() * e.retry_after_ms
        OR e.answer IN ('fleet_retry', 'fleet_overload'))) AS ignores_retry_after,
    bool_or(e.hits >= 2 * slow_hits() OR (e.hits >= 2 * fast_hits() AND e.peak_rps >= fast_rps())) AS clear,
    bool_or(e.solo) AS solo
FROM (
    SELECT * FROM phases
    QUALIFY row_number() OVER (PARTITION BY incident ORDER BY fleet DESC, class <> 'overload_amplification' AND fleet,
        first_us, n DESC, class) = 1
) p JOIN episodes e ON e.incident = p.incident AND e.class = p.class
GROUP BY ALL;

CREATE OR REPLACE TEMP TABLE impacts AS
WITH totals AS (
    SELECT incident, CAST(round(sum(n * part)) AS BIGINT) AS n, sum(dur_us * part) AS dur_us,
        sum(coalesce(bytes_in + bytes_out, bytes_in, bytes_out) * part) AS bytes, sum(n_refused * part) AS refused,
        min(first_us) AS first_us, max(last_us) AS last_us, list_sort(list_distinct(flatten(list(nodes)))) AS nodes
    FROM parts_of_incidents GROUP BY incident
),
windows AS (
    SELECT *, first_us - first_us % 60000000 AS from_us, last_us - last_us % 60000000 AS until_us FROM totals
),
-- Sums from the first minute of a node to each: what was between two moments is a difference, without a look at every
-- minute of every incident.
until_minute AS (
    SELECT node, minute_us, sum(n) OVER past AS n, sum(dur_us) OVER past AS dur_us, sum(bytes) OVER past AS bytes,
        sum(refused) OVER past AS refused, sum(kept) OVER past AS kept, sum(kept_slow) OVER past AS kept_slow
    FROM traffic WINDOW past AS (PARTITION BY node ORDER BY minute_us)
),
-- Everything on the incident's nodes in its minutes, and in as many minutes before it.
spans AS (
    SELECT incident, true AS during, unnest(nodes) AS node, from_us, until_us FROM windows
    UNION ALL
    SELECT incident, false, unnest(nodes), 2 * from_us - until_us - 60000000, from_us - 60000000 FROM windows
),
traffics AS (
    SELECT s.incident, s.during, total(t.n - coalesce(f.n, 0)) AS n, total(t.dur_us - coalesce(f.dur_us, 0)) AS dur_us,
        total(t.bytes - coalesce(f.bytes, 0)) AS bytes, total(t.refused - coalesce(f.refused, 0)) AS refused,
        total(t.kept - coalesce(f.kept, 0)) AS kept, total(t.kept_slow - coalesce(f.kept_slow, 0)) AS kept_slow
    FROM spans s ASOF JOIN until_minute t ON t.node = s.node AND t.minute_us <= s.until_us
        ASOF LEFT JOIN until_minute f ON f.node = s.node AND f.minute_us < s.from_us
    GROUP BY s.incident, s.during
),
-- Refusals that other incidents of these minutes tell are theirs: on each of the nodes, those of all that had begun
-- without those of all that were over. An incident's are taken to be its nodes' in equal parts.
shares AS (SELECT * REPLACE (refused / len(nodes) AS refused), unnest(nodes) AS node FROM windows),
begun AS (
    SELECT node, first_us, sum(sum(refused)) OVER (PARTITION BY node ORDER BY first_us) AS refused
    FROM shares GROUP BY node, first_us
),
over_by AS (
    SELECT node, last_us, sum(sum(refused)) OVER (PARTITION BY node ORDER BY last_us) AS refused
    FROM shares GROUP BY node, last_us
),
elsewhere AS (
    SELECT w.incident, sum(coalesce(b.refused, 0) - coalesce(o.refused, 0) - w.refused) AS refused
    FROM shares w
        ASOF LEFT JOIN begun b ON b.node = w.node AND b.first_us <= w.until_us + 60000000
        ASOF LEFT JOIN over_by o ON o.node = w.node AND o.last_us < w.from_us
    GROUP BY w.incident
)
SELECT w.incident, w.n, w.first_us, w.last_us, w.nodes, w.bytes, w.dur_us,
    least(1.0, w.n / greatest(1, d.n)) AS request_share,
    least(1.0, coalesce(w.dur_us, 0) / greatest(1, d.dur_us)) AS handler_share,
    least(1.0, coalesce(w.bytes, 0) / greatest(1, d.bytes)) AS byte_share,
    CAST(greatest(0, d.refused - w.refused - coalesce(e.refused, 0) - coalesce(b.refused, 0)) AS BIGINT)
        AS others_refused,
    CAST(greatest(0, d.kept_slow - coalesce(b.kept_slow * d.kept / greatest(1, b.kept), 0)) AS BIGINT) AS others_slowed,
    greatest(0, d.n - w.n) AS others
FROM windows w JOIN traffics d ON d.incident = w.incident AND d.during
    LEFT JOIN traffics b ON b.incident = w.incident AND NOT b.during
    LEFT JOIN elsewhere e ON e.incident = w.incident;

CREATE OR REPLACE TEMP TABLE incidents AS
WITH facts AS (
    SELECT incident,
        bool_and(named) AS named, min(seq_lo) AS seq_lo, max(seq_hi) AS seq_hi,
        CASE WHEN min(release_lo) = max(release_hi) THEN max(release_hi) END AS release, max(ua) AS ua,
        max(reason) AS reason, max(status_hi) AS status, sum(guard_ms * part) AS guard_ms, max(blind) AS blind,
        list({'node': nodes[1], 'ts_us': first_us, 'request': request} ORDER BY first_us, id)[:5] AS samples
    FROM parts_of_incidents GROUP BY incident
),
-- The busiest first. What a fleet did is taken to be its members' in equal parts.
who AS (
    SELECT incident, list(client ORDER BY n DESC, client) AS clients
    FROM (
        SELECT incident, client, sum(n) AS n
        FROM (SELECT incident, unnest(clients) AS client, n * part / len(clients) AS n FROM parts_of_incidents)
        GROUP BY incident, client
    )
    GROUP BY incident
),
what AS (
    SELECT incident, list(channel ORDER BY n DESC, channel) AS channels
    FROM (
        SELECT incident, channel, sum(n) AS n
        FROM (SELECT incident, unnest(channels) AS channel, n * part / len(channels) AS n FROM parts_of_incidents)
        WHERE channel IS NOT NULL
        GROUP BY incident, channel
    )
    GROUP BY incident
),
steps AS (
    SELECT incident, list({'class': class, 'n': n, 'first_us': first_us, 'last_us': last_us}
        ORDER BY first_us, class) AS phases
    FROM phases GROUP BY incident
)
SELECT i.incident, r.class, i.n,
    i.n / greatest(1.0, (i.last_us - i.first_us) / 1e6) AS mean_rps,
    -- A short burst need not keep to the seconds of the clock.
    CASE WHEN i.last_us - i.first_us < 2000000 THEN greatest(k.peak_rps, mean_rps) ELSE k.peak_rps END AS peak_rps,
    e.pace, e.pause_us, i.first_us, i.last_us, i.nodes, f.* EXCLUDE (incident), w.clients,
    coalesce(c.channels, []) AS channels, s.phases,
    r.trigger, r.trigger_us, r.ends_us, r.passed, r.ignores_retry_after, r.clear, r.solo,
    i.bytes, i.dur_us, i.request_share, i.handler_share, i.byte_share, i.others_refused, i.others_slowed, i.others,
    -- Cost is measurable only of a storm that is more than a few requests per second. What others suffered is laid
    -- to it only if it cost the server something: a slow loop beside an overload has refused nobody.
    CASE WHEN mean_rps < share_rps() THEN 0.0 ELSE greatest(request_share, handler_share, byte_share) END AS cost,
    cost >= share() AND (others_refused >= harm_n() AND others_refused >= harm_share() * others
        OR others_slowed >= harm_n() AND others_slowed >= harm_share() * others) AS harms,
    CASE
        WHEN harms OR cost >= heavy_share() AND k.peak_rps >= peak_rps() THEN 'critical'
        WHEN cost >= share() OR k.peak_rps >= peak_rps() THEN 'warn'
        ELSE 'minor' END AS severity
FROM impacts i JOIN roots r USING (incident) JOIN peaks k USING (incident) JOIN facts f USING (incident)
    JOIN steps s USING (incident) JOIN who w USING (incident) LEFT JOIN what c USING (incident)
    LEFT JOIN paces e USING (incident)
ORDER BY i.first_us, i.incident;
