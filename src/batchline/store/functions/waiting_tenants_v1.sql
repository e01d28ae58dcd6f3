-- waiting_tenants: which tenants have lines to claim in this scope, and at which keys they have fresh ones.
--
-- One row for each tenant at each key with fresh lines. Lanes of `batch`, and the lanes in `returned`, whose lines can be
-- claimed again, give a row without a key. Batches in `without` do not count. No locks.
-- Cost: one index probe for each tenant at each key.
CREATE FUNCTION batchline.waiting_tenants_v1(
    keys text[], excluded text[], below text[], batch uuid, returned bigint[],
    without uuid[] DEFAULT '{}'
) RETURNS TABLE (tenant text, key text)
LANGUAGE sql STABLE
AS $$
WITH RECURSIVE
-- The keys that have fresh lines: as given, or found by a loose index scan.
found_key AS (
    (
        SELECT n.key
        FROM batchline.lanes AS n
        WHERE n.open AND NOT n.drained AND keys IS NULL AND batch IS NULL
        ORDER BY n.key
        LIMIT 1
    )
    UNION ALL
    SELECT following.key
    FROM found_key
    CROSS JOIN LATERAL (
        SELECT n.key
        FROM batchline.lanes AS n
        WHERE n.open AND NOT n.drained AND n.key > found_key.key
        ORDER BY n.key
        LIMIT 1
    ) AS following
),
served_key AS (
    SELECT key FROM found_key
    UNION
    SELECT unnest(keys) WHERE batch IS NULL
),
-- The tenants at each key, by a loose index scan. Deadlines are compared by a subtraction, which the index cannot do for
-- itself: it would compare every entry of each page, and take half as long again.
waiting AS (
    SELECT k.key, first.tenant
    FROM served_key AS k
    CROSS JOIN LATERAL (
        SELECT n.tenant
        FROM batchline.lanes AS n
        WHERE n.open AND NOT n.drained AND n.key = k.key AND n.deadline - now() > interval '0'
          AND n.batch_id <> ALL (without)
        ORDER BY n.tenant, n.priority DESC, n.deadline, n.id
        LIMIT 1
    ) AS first
    WHERE batchline.in_scope_v1(k.key, keys, excluded, below)
    UNION ALL
    SELECT w.key, following.tenant
    FROM waiting AS w
    CROSS JOIN LATERAL (
        SELECT n.tenant
        FROM batchline.lanes AS n
        WHERE n.open AND NOT n.drained AND n.key = w.key AND n.tenant > w.tenant AND n.deadline - now() > interval '0'
          AND n.batch_id <> ALL (without)
        ORDER BY n.tenant, n.priority DESC, n.deadline, n.id
        LIMIT 1
    ) AS following
)
SELECT w.tenant, w.key FROM waiting AS w
UNION
SELECT n.tenant, NULL FROM batchline.lanes AS n WHERE n.id = ANY (returned)
UNION
SELECT n.tenant, NULL
FROM batchline.lanes AS n
WHERE n.batch_id = batch
  AND n.open
  AND NOT n.drained
  AND n.deadline > now()
  AND batchline.in_scope_v1(n.key, keys, excluded, below)
$$;
