-- take_delivery: lease a webhook that is due for `lease` seconds, with the delivery that has waited longest. A delivery
-- that was just created may not be visible to this statement yet. Then the webhook comes without a delivery, and
-- settle_delivery sets the right `due_at`.
--
-- Locks: the webhook row, skipped if another worker has it; then the delivery. No other worker takes the webhook until
-- it is settled or the lease expires, so its deliveries are sent one at a time.
WITH
webhook AS (
    UPDATE batchline.webhooks
    SET rests_until = now() + make_interval(secs => %(lease)s),
        due_at = now() + make_interval(secs => %(lease)s)
    WHERE id = (
        SELECT id FROM batchline.webhooks WHERE due_at <= now() ORDER BY due_at LIMIT 1 FOR UPDATE SKIP LOCKED
    )
    RETURNING *
),
delivery AS (
    UPDATE batchline.deliveries AS d
    SET attempts = d.attempts + 1
    FROM (
        SELECT open.webhook_id, open.event_id
        FROM webhook AS w
        CROSS JOIN LATERAL (
            SELECT *
            FROM batchline.deliveries AS o
            WHERE o.webhook_id = w.id
              AND o.delivered_at IS NULL
              AND o.failed_at IS NULL
              AND o.available_at <= now()
            ORDER BY o.available_at
            LIMIT 1
        ) AS open
    ) AS first
    WHERE d.webhook_id = first.webhook_id AND d.event_id = first.event_id
    RETURNING d.*
)
SELECT
    w.id AS webhook_id,
    w.url,
    w.secret,
    CASE WHEN w.previous_until > now() THEN w.previous_secret END AS previous_secret,
    w.rests_until AS lease_until,
    w.failures,
    d.event_id,
    d.batch_id,
    d.type,
    d.occurred_at,
    d.attempts
FROM webhook AS w
LEFT JOIN delivery AS d ON d.webhook_id = w.id
