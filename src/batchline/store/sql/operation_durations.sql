-- operation_durations: how long governed batches took from submission until no child was pending for the first time: for each operation
-- how many took no longer than each of `bounds`, then how many there are, and the sum of their seconds.
SELECT
    d.operation,
    ARRAY(
        SELECT count(*) FILTER (WHERE each.seconds <= bound)
        FROM unnest(%(bounds)s::float8[]) WITH ORDINALITY AS limits (bound, nth)
        CROSS JOIN unnest(array_agg(d.seconds)) AS each (seconds)
        GROUP BY nth
        ORDER BY nth
    ) AS within,
    count(*) AS batches,
    sum(d.seconds) AS seconds
FROM (
    SELECT
        o.operation,
        extract(epoch FROM coalesce(o.first_took, b.finalizing_at - b.created_at))::float8 AS seconds
    FROM operation_batches AS o
    JOIN batches AS b ON b.id = o.batch_id
    WHERE o.first_took IS NOT NULL OR b.finalizing_at IS NOT NULL
) AS d
GROUP BY d.operation
ORDER BY d.operation
