-- upstream_reports: what live workers report of upstreams, by routing key, and by the upstream's name if several serve the key, for all tenants: how many workers report on it, how many of
-- these cannot connect to it, one of the reasons, whether it slows any of them down, how many requests they may have in flight there together now and at most, whether any of them finds
-- that out by itself, and what the one with the most in flight follows. One limit may hold for several models of a key. The caller shows a tenant only upstreams of
-- the settings and of its own batches: other keys may be another tenant's models.
--
-- A worker reports with every renewal of its lease. Cost: one row by key for each live worker. Locks: none.
WITH load AS (
    SELECT
        w.id,
        load.key,
        load.upstream,
        max(load.unreachable) AS unreachable,
        bool_or(load.limited) AS limited,
        sum(load.in_flight) AS in_flight,
        max(load."limit") AS "limit",
        max(load.ceiling) AS ceiling,
        bool_or(load.auto) AS auto,
        max(load.signal) AS signal
    FROM batchline.workers AS w
    CROSS JOIN LATERAL (SELECT * FROM batchline.worker_reports AS each WHERE each.worker_id = w.id LIMIT 1) AS r
    CROSS JOIN LATERAL jsonb_to_recordset(r.loads) AS load (
        key text, limited boolean, unreachable text, in_flight integer, upstream text,
        "limit" integer, ceiling integer, auto boolean, signal text
    )
    WHERE w.lease_until >= now() AND load.in_flight > 0
    GROUP BY w.id, load.key, load.upstream
)
SELECT
    load.key,
    count(*) AS workers,
    count(load.unreachable) AS cut_off,
    max(load.unreachable) AS reason,
    bool_or(load.limited) AS limited,
    load.upstream,
    sum(load."limit")::bigint AS "limit",
    sum(load.ceiling)::bigint AS ceiling,
    coalesce(bool_or(load.auto), false) AS auto,
    (array_agg(load.signal ORDER BY load.in_flight DESC) FILTER (WHERE load.signal IS NOT NULL))[1] AS signal
FROM load
GROUP BY load.key, load.upstream
ORDER BY load.key, load.upstream
LIMIT %(limit)s
