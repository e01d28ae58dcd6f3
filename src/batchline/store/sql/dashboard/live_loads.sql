-- live_loads: workers with a lease, and what each holds of a tenant, by routing key, and by the name of the upstream if several serve
-- the key: one row per worker, key and upstream, and one without a key
-- if it holds nothing of this tenant. `version` is null until its first report.
--
-- Cost: the spans of live workers, which are few. While a snapshot is held elsewhere, dead ones are read too: the caller reads
-- this seldom, and less often when it takes long. Locks: none.
SELECT w.id, w.name, w.started_at, w.lease_until, held.key, coalesce(held.items, 0)::integer AS items, report.version, held.sent_to
FROM batchline.workers AS w
LEFT JOIN LATERAL (SELECT r.version FROM batchline.worker_reports AS r WHERE r.worker_id = w.id LIMIT 1) AS report ON true
LEFT JOIN LATERAL (
    SELECT n.key, s.sent_to, sum(
        -- One piece, as most spans have, is counted without unnesting it.
        CASE
            WHEN s.outstanding = int4multirange(range_merge(s.outstanding)) THEN upper(s.outstanding) - lower(s.outstanding)
            ELSE batchline.span_size(s.outstanding)
        END
    ) AS items
    FROM batchline.spans AS s
    CROSS JOIN LATERAL (SELECT * FROM batchline.lanes WHERE lanes.id = s.lane_id LIMIT 1) AS n
    WHERE s.worker_id = w.id AND n.tenant = %(tenant)s
    GROUP BY n.key, s.sent_to
) AS held ON true
WHERE w.lease_until >= now()
ORDER BY w.started_at, w.id, held.key, held.sent_to
LIMIT %(limit)s
