-- advance_deadlines: `seconds` have passed for the deadlines of a tenant's batches, and for schedules and calls after the end of a
-- batch that failed before. For tests only. Locks: these rows; no worker runs meanwhile.
WITH batch AS (
    UPDATE batchline.batches
    SET expires_at = expires_at - make_interval(secs => %(seconds)s)
    WHERE tenant = %(tenant)s AND ended_at IS NULL AND expires_at IS NOT NULL
    RETURNING id, expires_at
),
lane AS (
    UPDATE batchline.lanes
    SET deadline = batch.expires_at
    FROM batch
    WHERE lanes.batch_id = batch.id
),
schedule AS (
    UPDATE batchline.schedules
    SET available_at = available_at - make_interval(secs => %(seconds)s)
    WHERE tenant = %(tenant)s AND available_at <> due_at
)
UPDATE batchline.hook_deliveries
SET available_at = available_at - make_interval(secs => %(seconds)s)
WHERE delivered_at IS NULL AND failed_at IS NULL
RETURNING 1
