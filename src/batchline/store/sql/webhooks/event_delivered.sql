-- event_delivered: everybody who wanted to know was told.
UPDATE batchline.outbox SET delivered_at = now() WHERE id = %(event)s
