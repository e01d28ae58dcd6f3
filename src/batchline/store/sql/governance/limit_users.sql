-- limit_users: users of a tenant with pending batches, an override or an exemption. Locks: none.
SELECT user_id FROM batchline.limit_overrides WHERE tenant = %(tenant)s
UNION
SELECT user_id FROM batchline.limit_exemptions WHERE tenant = %(tenant)s
UNION
SELECT submitted_by
FROM batchline.batches
WHERE tenant = %(tenant)s AND submitted_by IS NOT NULL AND finalizing_at IS NULL AND ended_at IS NULL
ORDER BY 1
LIMIT 1000
