-- operation_durations: time from submission until a governed batch first had no pending child, as a histogram per
-- operation: number of batches, sum of seconds, and for each bound the batches that took at most that long, but longer
-- than the previous bound. Small tables. Locks: none.
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
