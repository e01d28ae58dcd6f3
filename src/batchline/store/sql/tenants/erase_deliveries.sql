-- erase_deliveries: delete the deliveries of events of deleted batches, to webhooks and to hooks. Runs after erase_events.
-- Returns their number.
WITH
webhook AS (
    DELETE FROM batchline.deliveries WHERE batch_id = ANY (%(batches)s::uuid[]) RETURNING 1
),
hook AS (
    DELETE FROM batchline.hook_deliveries WHERE batch_id = ANY (%(batches)s::uuid[]) RETURNING 1
)
SELECT ((SELECT count(*) FROM webhook) + (SELECT count(*) FROM hook))::integer
