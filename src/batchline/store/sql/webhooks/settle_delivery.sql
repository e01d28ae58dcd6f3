-- settle_delivery: record the outcome of an attempt, with the webhook's row locked (lock_webhook). A failed delivery is
-- tried again after `delay` seconds, and nothing is sent to the receiver for `rest` seconds. Deliveries older than
-- `abandon` seconds are abandoned. `event` is NULL if there was nothing to send.
WITH
delivery AS (
    UPDATE batchline.deliveries
    SET delivered_at = CASE WHEN %(delivered)s THEN now() END,
        available_at = now() + make_interval(secs => %(delay)s),
        failed_at = CASE
            WHEN NOT %(delivered)s AND created_at < now() - make_interval(secs => %(abandon)s) THEN now()
        END,
        last_status = %(status)s,
        last_error = %(error)s
    WHERE webhook_id = %(webhook)s AND event_id = %(event)s::uuid
    RETURNING *
),
stale AS (
    UPDATE batchline.deliveries
    SET failed_at = now(), last_error = coalesce(last_error, 'the receiver could not be reached in time')
    WHERE webhook_id = %(webhook)s
      AND event_id IS DISTINCT FROM %(event)s::uuid
      AND delivered_at IS NULL
      AND failed_at IS NULL
      AND created_at < now() - make_interval(secs => %(abandon)s)
    RETURNING event_id
),
open AS (
    SELECT available_at FROM delivery WHERE delivered_at IS NULL AND failed_at IS NULL
    UNION ALL
    SELECT available_at
    FROM batchline.deliveries
    WHERE webhook_id = %(webhook)s
      AND event_id IS DISTINCT FROM %(event)s::uuid
      AND event_id NOT IN (SELECT event_id FROM stale)
      AND delivered_at IS NULL
      AND failed_at IS NULL
)
UPDATE batchline.webhooks
SET failures = CASE
        WHEN %(event)s::uuid IS NULL THEN failures
        WHEN %(delivered)s THEN 0
        ELSE failures + 1
    END,
    rests_until = now() + make_interval(secs => %(rest)s),
    due_at = (SELECT greatest(min(available_at), now() + make_interval(secs => %(rest)s)) FROM open
              HAVING count(*) > 0)
WHERE id = %(webhook)s
RETURNING (SELECT failed_at IS NOT NULL FROM delivery) AS given_up
