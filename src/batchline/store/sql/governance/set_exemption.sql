-- set_exemption: exempt a user from the per-user limits until a time in the future. Returns no row if that time is
-- past. Runs under lock_user_limits.
INSERT INTO batchline.limit_exemptions AS e (tenant, user_id, reason, expires_at, exempted_by)
SELECT %(tenant)s, %(user)s, %(reason)s, %(expires_at)s::timestamptz, %(actor)s
WHERE %(expires_at)s::timestamptz > clock_timestamp()
ON CONFLICT (tenant, user_id) DO UPDATE SET
    reason = excluded.reason,
    expires_at = excluded.expires_at,
    exempted_by = excluded.exempted_by,
    created_at = excluded.created_at
RETURNING user_id, reason, expires_at, exempted_by, created_at, true AS active
