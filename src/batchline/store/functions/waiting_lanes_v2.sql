-- waiting_lanes: of each tenant the lanes that hold its share, in the order of claims: by priority, the highest first; then by
-- deadline; with the same deadline, lines that were claimed before come before fresh ones, because they are earlier lines; then
-- by lane.
--
-- `tenants` and `tenant_keys` are from waiting_tenants, `sharers` and `shares` from fair_shares. A lane with both kinds of
-- lines has two rows. `items` counts no more returned lines than the share, and just one where the tenant has enough fresh
-- lines in one lane anyway. Lines in a provider's chunk are not counted: claim_returned leaves them alone. No locks.
--
-- One claim takes no more lines of a lane than the concurrency of its batch (`max_items`): a worker has no more of them in flight.
-- Those of a batch in `without` are not wanted: this worker has enough of them. A worker of one batch has no other use for its
-- slots, and looks at neither.
-- Cost: one lane at each key of a tenant if the most urgent one is enough, else as many lanes as there are lines to share.
CREATE FUNCTION batchline.waiting_lanes_v2(
    tenants text[], tenant_keys text[], sharers text[], shares integer[], returned_lanes bigint[], expired uuid[],
    keys text[], excluded text[], below text[], batch uuid, without uuid[] DEFAULT '{}'
) RETURNS TABLE (tenant text, share integer, lane_id bigint, returned boolean, items integer, max_items integer)
LANGUAGE sql STABLE
AS $$
WITH
sharer AS (
    SELECT s.tenant, s.share FROM unnest(sharers, shares) AS s (tenant, share)
),
key_of AS (
    SELECT s.tenant, s.share, k.key
    FROM unnest(tenants, tenant_keys) AS k (tenant, key)
    JOIN sharer AS s ON s.tenant = k.tenant
    WHERE k.key IS NOT NULL
),
first AS MATERIALIZED (
    SELECT k.tenant, k.share, n.id, n.priority, n.deadline, n.pending
    FROM key_of AS k
    CROSS JOIN LATERAL (
        SELECT n.id, n.priority, n.deadline, least(n.total - n.next, n.concurrency) AS pending
        FROM batchline.current_lanes AS n
        WHERE n.open AND NOT n.drained AND n.key = k.key AND n.tenant = k.tenant AND n.deadline > now()
          AND n.batch_id <> ALL (without)
        ORDER BY n.priority DESC, n.deadline, n.id
        LIMIT 1
    ) AS n
),
urgent AS (
    SELECT DISTINCT ON (f.tenant) f.tenant, f.pending >= f.share AS enough
    FROM first AS f
    ORDER BY f.tenant, f.priority DESC, f.deadline, f.id
),
fresh_lane AS (
    SELECT f.tenant, f.id, f.priority, f.deadline, f.pending
    FROM first AS f
    JOIN urgent AS u ON u.tenant = f.tenant
    WHERE u.enough
    UNION ALL
    SELECT k.tenant, n.id, n.priority, n.deadline, n.pending
    FROM key_of AS k
    JOIN urgent AS u ON u.tenant = k.tenant
    CROSS JOIN LATERAL (
        SELECT n.id, n.priority, n.deadline, least(n.total - n.next, n.concurrency) AS pending
        FROM batchline.current_lanes AS n
        WHERE n.open AND NOT n.drained AND n.key = k.key AND n.tenant = k.tenant AND n.deadline > now()
          AND n.batch_id <> ALL (without)
        ORDER BY n.priority DESC, n.deadline, n.id
        LIMIT k.share
    ) AS n
    WHERE NOT u.enough
    UNION ALL
    SELECT n.tenant, n.id, n.priority, n.deadline, n.total - n.next
    FROM batchline.current_lanes AS n
    WHERE n.batch_id = batch
      AND n.open
      AND NOT n.drained
      AND n.deadline > now()
      AND batchline.in_scope_v1(n.key, keys, excluded, below)
),
returned_lane AS (
    SELECT
        n.tenant,
        n.id,
        n.priority,
        n.deadline,
        limited.max_items,
        CASE WHEN u.enough THEN 1 ELSE least(counted.items, limited.max_items) END::bigint AS items
    FROM batchline.lanes AS n
    JOIN sharer AS s ON s.tenant = n.tenant
    LEFT JOIN urgent AS u ON u.tenant = n.tenant
    CROSS JOIN LATERAL (SELECT CASE WHEN batch IS NULL THEN n.concurrency END AS max_items) AS limited
    CROSS JOIN LATERAL (
        SELECT sum(batchline.span_size(claimable.outstanding)) AS items
        FROM (
            (
                SELECT free.outstanding
                FROM batchline.spans AS free
                WHERE free.worker_id IS NULL AND free.lane_id = n.id AND free.available_at <= now()
                ORDER BY free.available_at
                LIMIT s.share
            )
            UNION ALL
            SELECT held.outstanding
            FROM batchline.spans AS held
            WHERE held.worker_id = ANY (expired) AND held.lane_id = n.id
              AND (held.task_id IS NULL OR NOT starts_with(held.task_id, 'chunk:'))
        ) AS claimable
        WHERE u.enough IS NOT TRUE
    ) AS counted
    WHERE n.id = ANY (returned_lanes)
),
waiting AS (
    SELECT r.tenant, r.id, r.priority, r.deadline, true AS returned, r.items, r.max_items FROM returned_lane AS r
    UNION ALL
    SELECT f.tenant, f.id, f.priority, f.deadline, false, f.pending, f.pending FROM fresh_lane AS f
),
ordered AS (
    SELECT
        w.*,
        s.share,
        sum(w.items) OVER (
            PARTITION BY w.tenant ORDER BY w.priority DESC, w.deadline, w.returned DESC, w.id
        ) - w.items AS before
    FROM waiting AS w
    JOIN sharer AS s ON s.tenant = w.tenant
)
SELECT o.tenant, o.share, o.id, o.returned, o.items::integer, o.max_items::integer
FROM ordered AS o
WHERE o.before < o.share
ORDER BY o.tenant, o.priority DESC, o.deadline, o.returned DESC, o.id
$$;
