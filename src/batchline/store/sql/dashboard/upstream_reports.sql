-- upstream_reports: what live workers report of upstreams, by routing key, for all tenants: how many workers report on it, how many of
-- these cannot connect to it, one of the reasons, and whether it slows any of them down. The caller shows a tenant only upstreams of
-- the settings and of its own batches: other keys may be another tenant's models.
--
-- A worker reports with every renewal of its lease. Cost: one row by key for each live worker. Locks: none.
SELECT
    load.key,
    count(DISTINCT w.id) AS workers,
    count(DISTINCT w.id) FILTER (WHERE load.unreachable IS NOT NULL) AS cut_off,
    max(load.unreachable) AS reason,
    bool_or(load.limited) AS limited
FROM batchline.workers AS w
CROSS JOIN LATERAL (SELECT * FROM batchline.worker_reports AS each WHERE each.worker_id = w.id LIMIT 1) AS r
CROSS JOIN LATERAL jsonb_to_recordset(r.loads) AS load (key text, limited boolean, unreachable text, in_flight integer)
WHERE w.lease_until >= now() AND load.in_flight > 0
GROUP BY load.key
ORDER BY load.key
LIMIT %(limit)s
