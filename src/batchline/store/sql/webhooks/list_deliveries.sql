-- list_deliveries: what was said to a webhook, newest first, those after one of them. Events have ids that
-- grow with time.
SELECT d.*
FROM batchline.deliveries AS d
WHERE d.webhook_id = %(webhook)s AND (%(after)s::uuid IS NULL OR d.event_id < %(after)s)
ORDER BY d.event_id DESC
LIMIT %(limit)s
