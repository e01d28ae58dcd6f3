-- list_overrides: users of a tenant with limits that replace the defaults.
SELECT user_id, max_pending_parents, max_pending_children, cooldown_seconds, reason, set_by, set_at
FROM batchline.limit_overrides
WHERE tenant = %(tenant)s
ORDER BY user_id
