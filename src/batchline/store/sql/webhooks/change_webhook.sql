-- change_webhook: change name, URL or events; NULL keeps the current value. `updated_at` changes only if a value
-- changes. A new URL resets the failures, because that receiver has not failed yet.
UPDATE batchline.webhooks
SET name = coalesce(%(name)s, name),
    url = coalesce(%(url)s, url),
    events = coalesce(%(events)s::text[], events),
    failures = CASE WHEN %(url)s <> url THEN 0 ELSE failures END,
    updated_at = CASE
        WHEN (coalesce(%(name)s, name), coalesce(%(url)s, url), coalesce(%(events)s::text[], events))
            = (name, url, events) THEN updated_at
        ELSE now()
    END
WHERE id = %(webhook)s AND tenant = %(tenant)s
RETURNING *
