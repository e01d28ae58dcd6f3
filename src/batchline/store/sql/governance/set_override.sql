-- set_override: set limits for one user that replace the defaults. Runs under lock_user_limits.
INSERT INTO batchline.limit_overrides AS o (
    tenant, user_id, max_pending_parents, max_pending_children, cooldown_seconds, reason, set_by
)
VALUES (%(tenant)s, %(user)s, %(parents)s, %(children)s, %(cooldown)s, %(reason)s, %(actor)s)
ON CONFLICT (tenant, user_id) DO UPDATE SET
    max_pending_parents = excluded.max_pending_parents,
    max_pending_children = excluded.max_pending_children,
    cooldown_seconds = excluded.cooldown_seconds,
    reason = excluded.reason,
    set_by = excluded.set_by,
    set_at = excluded.set_at
RETURNING user_id, max_pending_parents, max_pending_children, cooldown_seconds, reason, set_by, set_at
