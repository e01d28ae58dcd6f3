-- list_deliveries: the deliveries of a webhook, newest first; `after` is the last event of the previous page. Event ids
-- grow with time.
SELECT d.*
FROM batchline.deliveries AS d
WHERE d.webhook_id = %(webhook)s AND (%(after)s::uuid IS NULL OR d.event_id < %(after)s)
ORDER BY d.event_id DESC
LIMIT %(limit)s
