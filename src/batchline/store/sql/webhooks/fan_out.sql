-- fan_out: create one delivery of an event for each webhook of its tenant that subscribes to its type. Returns the
-- number of new deliveries. Safe to repeat: a webhook gets an event once.
--
-- Locks: the webhooks in id order, so that two events of one tenant cannot deadlock. A delivery becomes visible
-- together with its webhook's `due_at`, which the same statement sets.
WITH
webhook AS MATERIALIZED (
    SELECT w.id, o.id AS event_id, o.batch_id, o.type, o.created_at AS occurred_at
    FROM batchline.outbox AS o
    JOIN batchline.batches AS b ON b.id = o.batch_id
    JOIN batchline.webhooks AS w ON w.tenant = b.tenant AND o.type = ANY (w.events)
    WHERE o.id = %(event)s
    ORDER BY w.id
    FOR UPDATE OF w
),
delivery AS (
    INSERT INTO batchline.deliveries (webhook_id, event_id, batch_id, type, occurred_at)
    SELECT id, event_id, batch_id, type, occurred_at FROM webhook
    ON CONFLICT DO NOTHING
    RETURNING webhook_id
),
notified AS (
    UPDATE batchline.webhooks AS w
    -- greatest and least ignore NULL.
    SET due_at = greatest(least(w.due_at, now()), w.rests_until)
    FROM delivery AS d
    WHERE w.id = d.webhook_id
    RETURNING w.id
)
SELECT count(*) FROM notified
