-- Figures of a report, from the tables that the rules leave behind (analytics.rules.engine): no line is read again.
-- What incidents consist of. "wasted": its requests without the first one of each client for each thing.
CREATE OR REPLACE TEMP TABLE figure_parts AS
SELECT incident, id, class, fleet, named, clients, channels, nodes, ua,
    CASE WHEN release_lo = release_hi THEN release_hi END AS release,
    n * part AS n,
    part * greatest(0, hits - CASE WHEN fleet THEN len(clients) ELSE 1 END) AS wasted,
    coalesce(bytes_in + bytes_out, bytes_in, bytes_out) * part AS bytes,
    dur_us * part AS dur_us
FROM parts_of_incidents WHERE part > 0;

CREATE OR REPLACE TEMP TABLE figure_totals AS
SELECT t.*, i.*
FROM (
    SELECT CAST(coalesce(sum(n), 0) AS BIGINT) AS requests, CAST(coalesce(sum(failed), 0) AS BIGINT) AS failures,
        list_sort(list(DISTINCT node)) AS nodes
    FROM traffic
) t, (
    SELECT CAST(round(coalesce(sum(n), 0)) AS BIGINT) AS in_incidents,
        CAST(round(coalesce(sum(wasted), 0)) AS BIGINT) AS wasted,
        -- Not known where no line has any; nothing where there is no incident.
        CASE WHEN count(*) = 0 THEN 0 ELSE CAST(round(sum(bytes * wasted / n)) AS BIGINT) END AS wasted_bytes,
        CASE WHEN count(*) = 0 THEN 0 ELSE sum(dur_us * wasted / n) / 1e6 END AS wasted_s
    FROM figure_parts
) i;

-- Requests of incidents by second. A bucket of the roll-up that is longer is spread over its time.
CREATE OR REPLACE TEMP TABLE figure_seconds AS
SELECT incident, id, n / (until_us // 1000000 - from_us // 1000000 + 1.0) AS n,
    unnest(range(from_us // 1000000, until_us // 1000000 + 1)) * 1000000 AS second_us
FROM pulses;

-- Per server and minute: all requests, and those that were wasted.
CREATE OR REPLACE TEMP TABLE figure_minutes AS
WITH stormy AS (
    SELECT node, minute_us, sum(n) AS n, sum(wasted) AS wasted
    FROM (
        SELECT unnest(p.nodes) AS node, s.second_us - s.second_us % 60000000 AS minute_us, s.n / len(p.nodes) AS n,
            s.n * p.wasted / p.n / len(p.nodes) AS wasted
        FROM figure_seconds s JOIN figure_parts p USING (id)
    )
    GROUP BY node, minute_us
)
SELECT t.node, t.minute_us, t.n, t.failed, coalesce(s.n, 0) AS in_incidents,
    t.n / greatest(1.0, t.n - coalesce(s.wasted, 0)) AS amplification
FROM traffic t LEFT JOIN stormy s USING (node, minute_us);

-- A crowd's requests are divided evenly among its clients.
CREATE OR REPLACE TEMP TABLE figure_offenders AS
WITH members AS (
    SELECT unnest(clients) AS client, named, fleet, release, ua, n / len(clients) AS n FROM figure_parts
),
told AS (
    -- The release of a crowd says nothing about one of its clients.
    SELECT 'client' AS kind, client AS name, sum(n) AS n, max(release) FILTER (NOT fleet) AS release,
        max(ua) FILTER (NOT fleet) AS ua
    FROM members WHERE named GROUP BY client
    UNION ALL
    SELECT 'release', coalesce(release, ''), sum(n), NULL, NULL FROM figure_parts GROUP BY release
    UNION ALL
    -- Only keys that are addresses tell their network.
    SELECT 'network', network, sum(n), NULL, NULL
    FROM (
        SELECT n, CASE WHEN NOT named THEN client
            WHEN regexp_matches(client, '^[0-9]{1,3}([.][0-9]{1,3}){3}($|[#+])')
            THEN regexp_extract(client, '^([0-9]+[.][0-9]+[.][0-9]+)[.]', 1) || '.0/24' END AS network
        FROM members
    )
    WHERE network IS NOT NULL GROUP BY network
)
SELECT kind, name, release, ua, CAST(round(n) AS BIGINT) AS n, n / sum(n) OVER (PARTITION BY kind) AS share
FROM told
QUALIFY row_number() OVER (PARTITION BY kind ORDER BY n DESC, name) <= 10
ORDER BY kind, n DESC, name;

-- A server that was busy before and after, and wrote no line for five minutes: its log may have a hole.
CREATE OR REPLACE TEMP TABLE figure_gaps AS
SELECT node, minute_us + 60000000 AS from_us, next_us AS until_us
FROM (
    SELECT node, minute_us, lead(minute_us) OVER near AS next_us,
        min(n) OVER (near ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) AS n_before,
        min(n) OVER (near ROWS BETWEEN 1 FOLLOWING AND 3 FOLLOWING) AS n_after
    FROM traffic WINDOW near AS (PARTITION BY node ORDER BY minute_us)
)
WHERE next_us - minute_us > 300000000 AND n_before >= 100 AND n_after >= 100
ORDER BY from_us, node LIMIT 5;
