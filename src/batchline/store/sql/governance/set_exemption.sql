-- set_exemption: lift a user's limits until a moment that is yet to come; no row where it is not. Under lock_user_limits.
INSERT INTO batchline.limit_exemptions AS e (tenant, user_id, reason, expires_at, exempted_by)
SELECT %(tenant)s, %(user)s, %(reason)s, %(expires_at)s::timestamptz, %(actor)s
WHERE %(expires_at)s::timestamptz > clock_timestamp()
ON CONFLICT (tenant, user_id) DO UPDATE SET
    reason = excluded.reason,
    expires_at = excluded.expires_at,
    exempted_by = excluded.exempted_by,
    created_at = excluded.created_at
RETURNING user_id, reason, expires_at, exempted_by, created_at, true AS active
