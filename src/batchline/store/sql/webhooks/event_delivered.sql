-- event_delivered: mark an event as passed on to all its receivers.
UPDATE batchline.outbox SET delivered_at = now() WHERE id = %(event)s
