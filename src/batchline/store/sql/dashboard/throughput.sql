-- throughput: items that a tenant's batches have completed and failed in each of the last `minutes`, and how many were in flight
-- on average, from what settles have noted (note_progress).
--
-- A note covers the seconds before it. One of at most 90 seconds counts in its minute and in the one before, by their shares;
-- a longer one counts alike in all minutes that it covers.
--
-- No more than `limit` notes are read, the newest: then the first minutes are missing. Cost: one range of an index. Locks: none.
WITH
note AS MATERIALIZED (
    SELECT
        date_bin('1 minute', p.at, '2000-01-01') AS minute,
        p.at,
        greatest(p.seconds, 0.001)::float8 AS seconds,
        p.more_completed,
        p.more_failed,
        p.in_flight
    FROM batchline.progress AS p
    WHERE p.tenant = %(tenant)s AND p.at > date_trunc('minute', now()) - %(minutes)s * interval '1 minute'
    ORDER BY p.at DESC
    LIMIT %(limit)s
),
short AS (
    SELECT
        n.minute,
        sum(n.more_completed) AS completed,
        sum(n.more_completed * inside.share) AS completed_inside,
        sum(n.more_failed) AS failed,
        sum(n.more_failed * inside.share) AS failed_inside,
        sum(n.in_flight * n.seconds / 60) AS in_flight,
        sum(n.in_flight * n.seconds / 60 * inside.share) AS in_flight_inside
    FROM note AS n
    CROSS JOIN LATERAL (
        SELECT least(extract(epoch FROM n.at - n.minute)::float8 / n.seconds, 1) AS share
    ) AS inside
    WHERE n.seconds <= 90
    GROUP BY n.minute
),
part (minute, completed, failed, in_flight) AS (
    SELECT s.minute, s.completed_inside, s.failed_inside, s.in_flight_inside FROM short AS s
    UNION ALL
    SELECT
        s.minute - interval '1 minute',
        s.completed - s.completed_inside,
        s.failed - s.failed_inside,
        s.in_flight - s.in_flight_inside
    FROM short AS s
    UNION ALL
    SELECT covered.minute, 60 / n.seconds * n.more_completed, 60 / n.seconds * n.more_failed, n.in_flight
    FROM note AS n
    CROSS JOIN LATERAL generate_series(
        date_trunc('minute', n.at - (n.seconds - 60) * interval '1 second'), n.at, interval '1 minute'
    ) AS covered (minute)
    WHERE n.seconds > 90 AND covered.minute >= date_trunc('minute', now()) - %(minutes)s * interval '1 minute'
)
SELECT minute, sum(completed)::float8, sum(failed)::float8, sum(in_flight)::float8
FROM part
GROUP BY minute
ORDER BY minute
