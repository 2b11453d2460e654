-- How a client paces itself: the pauses between its requests, in its own time (without what the storm guard held). An
-- incident's pace is that of the client and channel with the most requests; a fleet's seconds are no client's.
CREATE OR REPLACE TEMP TABLE paces AS
WITH busiest AS (
    SELECT incident, pulse, least(1.0, gap_ms * (n - 1) * 1000 / greatest(1, last_us - first_us)) AS own
    FROM episodes
    -- Where several readers share a key, the pauses are between different readers.
    WHERE NOT fleet AND named AND readers <= 1
        -- Times in whole seconds say nothing about pauses.
        AND len([1 FOR one IN pulse IF one.from_us % 1000000 <> 0 OR one.until_us % 1000000 <> 0]) > 0
    QUALIFY row_number() OVER (PARTITION BY incident ORDER BY hits DESC, id) = 1
),
pulses_of_one AS (
    SELECT incident, own, unnest(pulse) AS pulse FROM busiest
),
-- Of the pauses in a bucket only the mean is known ("of": the mean of how many). Of a full bucket ten are enough.
pauses AS (
    SELECT incident, own, pulse.from_us AS at_us, own * (pulse.until_us - pulse.from_us) / (pulse.n - 1) AS pause_us,
        pulse.n - 1 AS of, unnest(range(least(pulse.n - 1, 10)))
    FROM pulses_of_one WHERE pulse.n > 1
    UNION ALL
    SELECT incident, own, pulse.from_us - 1,
        own * (pulse.from_us - lag(pulse.until_us) OVER (PARTITION BY incident ORDER BY pulse.from_us)), 1, 0
    FROM pulses_of_one
),
thirds AS (
    SELECT *, ntile(3) OVER (PARTITION BY incident ORDER BY at_us) AS third,
        -- A mean of several pauses is nearer to the middle than each of them is, by the root of their number.
        (pause_us - median(pause_us) OVER (PARTITION BY incident)) * sqrt(of) AS off_us
    FROM pauses WHERE pause_us >= 0
),
summed AS (
    SELECT incident, any_value(own) AS own, count(*) AS pauses, median(pause_us) AS pause_us,
        median(pause_us) FILTER (third = 1) AS early_us, median(pause_us) FILTER (third = 3) AS late_us,
        quantile_cont(off_us, 0.75) - quantile_cont(off_us, 0.25) AS spread_us
    FROM thirds GROUP BY incident
)
SELECT incident, pause_us,
    CASE WHEN pause_us < hot_us() THEN 'hot loop'
        -- The guard holds a loop for longer each time: whether its own pauses grow cannot be told.
        WHEN own < 0.9 THEN NULL
        WHEN late_us >= 2 * early_us AND early_us > 0 THEN 'backing off'
        WHEN spread_us <= pause_us / 2 THEN 'fixed'
        ELSE 'irregular' END AS pace
FROM summed
WHERE pauses >= 5;
