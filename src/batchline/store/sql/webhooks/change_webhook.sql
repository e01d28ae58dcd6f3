-- change_webhook: another name, URL or set of events; NULL leaves what is there. What changes nothing is no
-- change. A receiver at another URL has not failed yet, so it need not rest.
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
