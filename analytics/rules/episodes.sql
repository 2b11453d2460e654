-- Which cases belong together. A hub is a reason to belong to one incident: a key, and a time without a longer pause.
CREATE OR REPLACE TEMP TABLE hubs AS
WITH marks AS (
    -- A cascade: one client on one channel gets an empty segment, then the channel's end, then 404.
    SELECT id, 'client and channel' AS rule, concat_ws(chr(0), clients[1], channel) AS key, first_us, last_us, slow
    FROM classed WHERE NOT fleet
    UNION ALL
    SELECT id, 'class and channel', concat_ws(chr(0), class, channel), first_us, last_us, slow
    FROM classed WHERE NOT fleet AND channel IS NOT NULL
    UNION ALL
    SELECT id, 'class and client', concat_ws(chr(0), class, clients[1]), first_us, last_us, slow
    FROM classed WHERE NOT fleet
    UNION ALL
    -- An overload of one node is one, however many channels and clients it touches.
    SELECT id, 'overload', unnest(nodes), first_us, last_us, slow
    FROM classed WHERE class IN ('overload_client', 'overload_amplification')
    UNION ALL
    SELECT id, 'fleets of a node', unnest(nodes), first_us, last_us, slow FROM classed WHERE fleet
    UNION ALL
    -- A fleet absorbs what its members did.
    SELECT id, 'members', concat_ws(chr(0), node, unnest(clients)), first_us, last_us, slow
    FROM (SELECT *, unnest(nodes) AS node FROM classed WHERE fleet OR is_failure(answer))
    UNION ALL
    -- One restart is one cue, on however many nodes.
    SELECT id, 'trigger', CASE WHEN trigger IN ('server_start', 'server_ready', 'drain', 'server_stop') THEN 'restart'
        ELSE trigger END, trigger_us, trigger_us + together_us() - gap_us(), false
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
    SELECT rule, key, island, min(id) AS least_id, list(DISTINCT id) AS ids, bool_or(fleet) AS fleet,
        count(DISTINCT clients[1]) AS clients
    FROM numbered JOIN (SELECT id, clients, fleet FROM classed) USING (id)
    GROUP BY rule, key, island
)
SELECT least_id, unnest(ids) AS id, rule FROM hub
WHERE len(ids) > 1
    AND (rule <> 'members' OR fleet)
    AND (rule <> 'overload' OR fleet OR clients >= many_clients());

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
