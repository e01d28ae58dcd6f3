-- operation_durations: how long governed batches took from submission until no child was pending for the first time: for
-- each operation how many there are, the sum of their seconds, and how many took no longer than each bound, but longer
-- than the one before. Small tables. Locks: none.
SELECT
    t.operation,
    t.batches,
    t.seconds,
    array_agg(d.bound ORDER BY d.bound) AS bounds,
    array_agg(d.batches ORDER BY d.bound) AS within
FROM batchline.operation_totals AS t
JOIN batchline.operation_durations AS d USING (operation)
GROUP BY t.operation
ORDER BY t.operation
