-- take_event: take one event to deliver. Until it is marked as delivered it is taken again, after increasing delays of
-- up to an hour, so events are delivered at least once. Locks: the event's row, skipping locked ones.
UPDATE batchline.outbox
SET attempts = attempts + 1,
    available_at = now() + least(interval '1 hour', interval '5 seconds' * 2 ^ least(attempts, 10))
WHERE id = (
    SELECT id
    FROM batchline.outbox
    WHERE delivered_at IS NULL AND available_at <= now()
    ORDER BY available_at
    LIMIT 1
    FOR UPDATE SKIP LOCKED
)
RETURNING id, batch_id, type, created_at
