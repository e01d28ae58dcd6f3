-- list_exemptions: of a tenant's users; an expired one is shown as not active, and counts for nothing.
SELECT user_id, reason, expires_at, exempted_by, created_at, expires_at > clock_timestamp() AS active
FROM batchline.limit_exemptions
WHERE tenant = %(tenant)s
ORDER BY user_id
