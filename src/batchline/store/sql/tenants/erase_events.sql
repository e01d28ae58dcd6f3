-- erase_events: delete the events of deleted batches. It waits for workers that are creating deliveries of them
-- (fan_out_hooks), so that the next statement, erase_deliveries, sees these. Returns their number.
WITH gone AS (
    DELETE FROM batchline.outbox WHERE batch_id = ANY (%(batches)s::uuid[]) RETURNING 1
)
SELECT count(*)::integer FROM gone
