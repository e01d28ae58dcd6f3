-- schedule_lags: how many seconds ago each schedule came due without a batch; 0 if it is not due. Schedules of all tenants,
-- those that are the most late first, up to `limit`. Locks: none.
SELECT s.name, greatest(extract(epoch FROM now() - s.due_at), 0)::float8 AS seconds
FROM batchline.schedules AS s
ORDER BY s.due_at
LIMIT %(limit)s
