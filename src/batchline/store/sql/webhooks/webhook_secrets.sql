-- webhook_secrets: the secrets that sign for a webhook now: its secret, and the previous one while that is valid.
SELECT secret, CASE WHEN previous_until > now() THEN previous_secret END AS previous_secret
FROM batchline.webhooks
WHERE id = %(webhook)s AND tenant = %(tenant)s
