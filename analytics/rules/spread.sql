-- A balancer spreads the tries of a client over many servers, so that each server sees too few of them. So a crowd on one
-- path, or channel, is judged over all of its servers first, as if they were one ("node" is then a name of the path, and "event" the
-- server); what it tells is not judged on each server again.
--   refusals: failures of paths on which many clients fail on several servers; mostly there are none.
--   spread: who is in such a crowd, from when to when.
CREATE OR REPLACE TEMP TABLE refusals AS
WITH failed AS (
    SELECT * FROM candidate WHERE retried_as(answer) IS NOT NULL AND named AND channel IS NOT NULL
),
paths AS (
    SELECT channel
    FROM (SELECT channel FROM failed GROUP BY channel, client HAVING min(node) <> max(node) AND sum(n) >= tries())
    GROUP BY channel HAVING count(*) >= herd_clients()
)
SELECT * REPLACE (chr(0) || channel AS node, node AS event) FROM failed WHERE channel IN (FROM paths);

CREATE OR REPLACE TEMP TABLE spread AS
WITH crowds AS (
    FROM retries_of('refusals')
)
-- A crowd on one server is that server's, which may see more of it on other paths.
FROM crowds SEMI JOIN (
    SELECT c.answer, c.node, c.since_us
    FROM (SELECT *, unnest(slices(first_us, last_us)) AS slice FROM crowds) c
        JOIN refusals f ON f.client = c.client AND f.channel = c.channel AND slice(f.first_us) = c.slice
            AND f.first_us BETWEEN c.first_us AND c.last_us AND retried_as(f.answer) = c.answer
    GROUP BY c.answer, c.node, c.since_us HAVING min(f.event) <> max(f.event)
) USING (answer, node, since_us);
