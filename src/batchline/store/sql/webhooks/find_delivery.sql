-- find_delivery: whether a webhook has a delivery of this event. Uses the primary key. Locks: none.
SELECT 1
FROM batchline.deliveries
WHERE webhook_id = %(webhook)s AND event_id = %(event)s
