-- take_event: one event to deliver. Until it is marked delivered it comes again, later and later, for a
-- day: at least once.
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
