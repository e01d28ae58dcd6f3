-- rotate_webhook: set a new secret. The previous one also signs for `keep` seconds, or not at all if that is 0.
UPDATE batchline.webhooks
SET secret = %(secret)s,
    previous_secret = CASE WHEN %(keep)s > 0 THEN secret END,
    previous_until = CASE WHEN %(keep)s > 0 THEN now() + make_interval(secs => %(keep)s) END,
    updated_at = now()
WHERE id = %(webhook)s AND tenant = %(tenant)s
RETURNING *
