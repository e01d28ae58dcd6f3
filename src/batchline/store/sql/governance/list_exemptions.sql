-- list_exemptions: exemptions of a tenant's users. An expired one has no effect and is listed as not active.
SELECT user_id, reason, expires_at, exempted_by, created_at, expires_at > clock_timestamp() AS active
FROM batchline.limit_exemptions
WHERE tenant = %(tenant)s
ORDER BY user_id
