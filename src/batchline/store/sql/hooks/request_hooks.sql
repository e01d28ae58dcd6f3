-- request_hooks: make the deliveries of a batch's ends to these hooks due now, also those that wait for their next try
-- or were abandoned. Creates those that do not exist. Leaves alone what was delivered and what somebody runs now.
-- Locks: the events, as fan_out_hooks does; then the deliveries, in order of hook and event.
INSERT INTO batchline.hook_deliveries AS d (hook, event_id, batch_id, type, occurred_at)
SELECT h.name, o.id, o.batch_id, o.type, o.created_at
FROM batchline.outbox AS o
CROSS JOIN unnest(%(hooks)s::text[]) AS h (name)
WHERE o.batch_id = %(batch)s AND o.type = ANY (%(ends)s)
ORDER BY h.name, o.id
FOR KEY SHARE OF o
ON CONFLICT (hook, event_id) DO UPDATE SET available_at = now(), failed_at = NULL
WHERE d.delivered_at IS NULL AND (d.running_until IS NULL OR d.running_until <= now())
