-- settle_hook_delivery: record the outcome of one attempt. A failed delivery is due again after `delay` seconds, or is
-- abandoned after `max_attempts` attempts. `attempt` is the fence: if the lease was lost and another process has taken
-- the delivery, nothing changes and no row is returned. Locks: the delivery.
UPDATE batchline.hook_deliveries
SET delivered_at = CASE WHEN %(delivered)s THEN now() END,
    failed_at = CASE WHEN NOT %(delivered)s AND attempts >= %(max_attempts)s THEN now() END,
    available_at = now() + make_interval(secs => %(delay)s),
    running_until = NULL,
    last_error = %(error)s,
    last_output = %(output)s
WHERE hook = %(hook)s AND event_id = %(event)s AND attempts = %(attempt)s AND delivered_at IS NULL
RETURNING failed_at IS NOT NULL AS abandoned
