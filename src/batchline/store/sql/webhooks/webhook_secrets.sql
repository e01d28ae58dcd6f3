-- webhook_secrets: what signs for a webhook now: its secret, and the one before while that lasts.
SELECT secret, CASE WHEN previous_until > now() THEN previous_secret END AS previous_secret
FROM batchline.webhooks
WHERE id = %(webhook)s AND tenant = %(tenant)s
