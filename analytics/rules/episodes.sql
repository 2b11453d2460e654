-- Servers whose clocks differ: the same clients do the same on one as on the other, for as long, but later by as much at
-- the beginning as at the end. What is long and much alike is no chance; it is one storm.
CREATE OR REPLACE TEMP TABLE skews AS
SELECT id, other_id, nodes[1] AS node, other_nodes[1] AS other, skew_us
FROM (
    SELECT *, lag(id) OVER near AS other_id, lag(nodes) OVER near AS other_nodes, lag(n) OVER near AS other_n,
        lag(clients) OVER near AS other_clients, first_us - lag(first_us) OVER near AS skew_us,
        last_us - lag(last_us) OVER near AS end_us
    FROM classed
    WINDOW near AS (PARTITION BY class, fleet, channels, CASE WHEN NOT fleet THEN clients[1] END ORDER BY first_us, id)
)
WHERE skew_us BETWEEN gap_us() AND 120 * gap_us() AND last_us - first_us >= gap_us()
    AND abs(end_us - skew_us) <= 1000000 + 0.05 * (last_us - first_us) AND n BETWEEN 0.4 * other_n AND 2.5 * other_n
    AND len(list_intersect(nodes, other_nodes)) = 0
    AND 2 * len(list_intersect(clients, other_clients)) >= greatest(len(clients), len(other_clients));

-- Which cases belong together. A hub is a reason to belong to one incident: a key, and a time without a longer
-- pause.
CREATE OR REPLACE TEMP TABLE hubs AS
WITH marks AS (
    -- A cascade: one client on one channel gets an empty segment, then the channel's end, then 404.
    -- And one that loops in bursts may pause for longer.
    SELECT id, 'client and channel' AS rule, concat_ws(chr(0), clients[1], channel) AS key, first_us, last_us,
        true AS slow
    FROM classed WHERE NOT fleet
    UNION ALL
    SELECT id, 'class and channel', concat_ws(chr(0), class, channel, unnest(nodes)), first_us, last_us, slow
    FROM classed WHERE NOT fleet AND channel IS NOT NULL
    UNION ALL
    SELECT id, 'class and client', concat_ws(chr(0), class, clients[1], unnest(nodes)), first_us, last_us, slow
    FROM classed WHERE NOT fleet
    UNION ALL
    SELECT id, 'fleets of a node', unnest(nodes), first_us, last_us, slow FROM classed WHERE fleet
    UNION ALL
    -- One restart is one cue, on however many nodes.
    SELECT id, 'trigger', concat_ws(chr(0), class, CASE
            WHEN list_contains(restarts(), trigger) THEN 'restart' ELSE trigger END),
        trigger_us, trigger_us + together_us() - gap_us(), false
    FROM classed WHERE fleet AND trigger IS NOT NULL
),
numbered AS (
    SELECT *, sum(starts) OVER (near ROWS UNBOUNDED PRECEDING) AS island
    FROM (
        SELECT *, CASE WHEN first_us - max(last_us) OVER (near ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
            <= CASE WHEN slow THEN slow_gap_us() ELSE gap_us() END THEN 0 ELSE 1 END AS starts
        FROM marks
        WINDOW near AS (PARTITION BY rule, key ORDER BY first_us, last_us, id)
    )
    WINDOW near AS (PARTITION BY rule, key ORDER BY first_us, last_us, id)
),
hub AS (
    SELECT rule, min(id) AS least_id, list(DISTINCT id) AS ids FROM numbered GROUP BY rule, key, island
),
-- An overload of one node is one, however many channels and clients it touches: a time in which many clients are
-- refused and come again at the same moment.
refused AS (
    SELECT id, clients[1] AS client, unnest(nodes) AS node, first_us, last_us
    FROM classed WHERE class = 'overload_client'
),
borders AS (
    SELECT node, at_us, sum(sum(change)) OVER (PARTITION BY node ORDER BY at_us) AS clients
    FROM (
        SELECT node, min(first_us) AS at_us, 1 AS change FROM refused GROUP BY node, client, first_us
        UNION ALL SELECT node, max(last_us) + 1, -1 FROM refused GROUP BY node, client, first_us
    )
    GROUP BY node, at_us
),
crowded AS (
    SELECT node, at_us AS first_us, lead(at_us) OVER (PARTITION BY node ORDER BY at_us) AS last_us, clients FROM borders
),
crowds AS (
    SELECT node, min(first_us) AS first_us, max(last_us) AS last_us
    FROM (
        SELECT *, sum(starts) OVER (PARTITION BY node ORDER BY first_us ROWS UNBOUNDED PRECEDING) AS island
        FROM (
            SELECT *, CASE WHEN first_us - lag(last_us) OVER (PARTITION BY node ORDER BY first_us) <= gap_us()
                THEN 0 ELSE 1 END AS starts
            FROM crowded WHERE clients >= many_clients()
        )
    )
    GROUP BY node, island
),
-- What lies for the most part in another's time belongs to it; a client that has looped for an hour does not
-- belong to a moment's overload.
within AS (
    SELECT c.node, c.first_us AS crowd_us, r.id
    FROM (SELECT *, unnest(slices(first_us, last_us)) AS slice FROM crowds) c
        JOIN refused r ON r.node = c.node AND slice(middle(r.first_us, r.last_us)) = c.slice
        AND 2 * (least(r.last_us, c.last_us) - greatest(r.first_us, c.first_us)) >= r.last_us - r.first_us
),
-- A fleet tells what its clients did in its time, and what began with it on a channel of many of them, however long
-- that lasts.
fleet AS (
    SELECT *, unnest(slices(since_us, until_us)) AS slice
    FROM (
        SELECT id, class, answer, unnest(nodes) AS node, channel, shared, clients, first_us,
            first_us - gap_us() AS since_us, last_us + gap_us() AS until_us
        FROM classed WHERE fleet
    )
),
-- A fleet behind a balancer is one on all of its servers.
balanced AS (
    SELECT DISTINCT f.id AS least_id, g.id
    FROM fleet f JOIN (SELECT id, class, channel, nodes[1] AS node, clients, first_us FROM classed WHERE fleet) g
        ON g.class = f.class AND g.channel = f.channel AND slice(g.first_us) = f.slice AND g.node <> f.node
        AND g.first_us BETWEEN f.since_us AND f.until_us
        AND 2 * len(list_intersect(f.clients, g.clients)) >= greatest(len(f.clients), len(g.clients))
),
alone AS (
    SELECT id, clients[1] AS client, channel, unnest(nodes) AS node, first_us, last_us
    FROM classed WHERE NOT fleet AND is_bad(answer)
),
absorbed AS (
    SELECT f.id AS least_id, c.id
    FROM (SELECT *, unnest(shared) AS channel FROM fleet) f
        JOIN alone c ON c.node = f.node AND c.channel = f.channel AND slice(c.first_us) = f.slice
        AND c.first_us BETWEEN f.since_us AND f.until_us
    UNION
    SELECT f.id, c.id
    FROM (SELECT *, unnest(clients) AS client FROM fleet) f
        JOIN alone c ON c.node = f.node AND c.client = f.client AND slice(middle(c.first_us, c.last_us)) = f.slice
        AND 2 * (least(c.last_us, f.until_us) - greatest(c.first_us, f.since_us))
            >= greatest(1, c.last_us - c.first_us)
    UNION
    -- Also of those that it does not count, since they came as late as they were told.
    SELECT f.id, r.id
    FROM fleet f JOIN refused r ON f.answer IN ('fleet_overload', 'fleet_retry') AND r.node = f.node
        AND slice(middle(r.first_us, r.last_us)) = f.slice
        AND 2 * (least(r.last_us, f.until_us) - greatest(r.first_us, f.since_us))
            >= greatest(1, r.last_us - r.first_us)
)
SELECT DISTINCT least_id, unnest(ids) AS id, rule FROM hub WHERE len(ids) > 1
UNION ALL
SELECT other_id, id, 'clocks' FROM skews
UNION ALL
SELECT min(id) OVER (PARTITION BY node, crowd_us), id, 'overload' FROM within
UNION ALL
SELECT least_id, id, 'balanced' FROM balanced
UNION ALL
SELECT least_id, id, 'fleet' FROM absorbed;

-- The connected components of cases and hubs: each takes the smallest id that it can reach.
CREATE OR REPLACE TEMP TABLE episodes AS
WITH RECURSIVE edges AS (
    SELECT id AS a, least_id AS b FROM hubs UNION SELECT least_id, id FROM hubs
),
reached (id, incident) USING KEY (id) AS (
    SELECT id, id AS incident FROM classed
    UNION
    SELECT e.b, min(r.incident)
    FROM reached r JOIN edges e ON e.a = r.id JOIN recurring.reached known ON known.id = e.b
    WHERE r.incident < known.incident
    GROUP BY e.b
)
SELECT c.*, r.incident FROM classed c JOIN reached r USING (id);
