-- doctor_tenants: check that the bytes that each tenant stores are counted as its files say, that each file counts as its
-- marks say, that a day has one row per tenant, and that nothing is left of erased tenants.
--
-- Checks all tenants, or the one of a batch. The bytes are those of one snapshot. Rows of an erased tenant are found by its
-- name, by its deleted batches, and by files whose row is gone.
WITH
tenant AS (
    SELECT t.*
    FROM batchline.tenants AS t
    WHERE %(batch)s::uuid IS NULL
       OR t.name = (SELECT b.tenant FROM batchline.batches AS b WHERE b.id = %(batch)s::uuid)
),
charged AS (
    SELECT c.tenant, sum(c.charged) AS bytes
    FROM (
        SELECT f.tenant, f.charged FROM batchline.files AS f
        UNION ALL
        SELECT u.tenant, u.charged FROM batchline.uploads AS u
    ) AS c
    GROUP BY c.tenant
),
newest AS (
    SELECT DISTINCT ON (u.tenant) u.tenant, u.stored FROM batchline.tenant_usage AS u ORDER BY u.tenant, u.day DESC, u.seq DESC
),
finding AS (
    SELECT
        'tenant_bytes' AS name,
        NULL::uuid AS file_id,
        format('tenant "%%s" stores %%s bytes, but %%s are counted', t.name, coalesce(c.bytes, 0), coalesce(n.stored, 0))
            AS message
    FROM tenant AS t
    LEFT JOIN charged AS c ON c.tenant = t.name
    LEFT JOIN newest AS n ON n.tenant = t.name
    WHERE coalesce(c.bytes, 0) <> coalesce(n.stored, 0)
    UNION ALL
    SELECT
        'tenant_bytes',
        f.id,
        format('%%s of its %%s bytes count for the quota of its tenant', f.charged, f.bytes)
    FROM batchline.files AS f
    JOIN tenant AS t ON t.name = f.tenant
    WHERE CASE
        WHEN f.purged_at IS NOT NULL THEN f.charged <> 0
        WHEN f.deleted_at IS NULL THEN f.charged <> f.bytes
        ELSE f.charged NOT IN (0, f.bytes)
    END
    UNION ALL
    SELECT 'tenant_bytes', f.id, format('its tenant "%%s" does not exist', f.tenant)
    FROM batchline.files AS f
    WHERE %(batch)s::uuid IS NULL AND NOT EXISTS (SELECT FROM batchline.tenants AS t WHERE t.name = f.tenant)
    UNION ALL
    SELECT 'tenant_usage', NULL, format('tenant "%%s" has %%s rows for %%s', u.tenant, count(*), u.day)
    FROM batchline.tenant_usage AS u
    JOIN tenant AS t ON t.name = u.tenant
    GROUP BY u.tenant, u.day
    HAVING count(*) > 1
    UNION ALL
    SELECT 'tenant_erased', NULL, format('tenant "%%s" was erased, but %%s has %%s rows of it', d.tenant, d.relation, count(*))
    FROM batchline.tenant_data AS d
    JOIN tenant AS t ON t.name = d.tenant
    WHERE t.erased_at IS NOT NULL
    GROUP BY d.tenant, d.relation
)
SELECT name, file_id, NULL::uuid AS batch_id, NULL::bigint AS lane_id, message
FROM finding
ORDER BY name, file_id, message
LIMIT %(max_findings)s
