-- claim_sample: give up to `limit` drawn lines of a batch to `worker`, though the batch is paused (draw_sample). As claim
-- otherwise; spans are small and are taken whole. A line that must be tried again waits for the rest of the batch.
--
-- Locks: the worker's row; spans, never waiting.
WITH
renewed AS MATERIALIZED (
    SELECT batchline.renew_lease_v1(%(worker)s, %(name)s, %(lease)s) IS NULL AS done
),
due AS (
    SELECT s.id
    FROM batchline.spans AS s
    JOIN batchline.lanes AS n ON n.id = s.lane_id AND n.deadline > now()
    WHERE s.batch_id = %(batch)s AND s.worker_id IS NULL AND s.available_at = to_timestamp(0)
    ORDER BY s.id
    LIMIT greatest(1, %(limit)s::integer / 16)
    FOR UPDATE OF s SKIP LOCKED
)
UPDATE batchline.spans AS s
SET worker_id = %(worker)s, claimed_at = now()
FROM due, renewed, batchline.batches AS b, batchline.lanes AS n
WHERE s.id = due.id AND b.id = s.batch_id AND n.id = s.lane_id AND renewed.done IS NOT NULL
RETURNING
    s.id, s.lane_id, s.batch_id, s.attempt, s.task_id, batchline.span_size(s.outstanding), n.url, n.model, n.key,
    extract(epoch FROM n.deadline - now())::double precision,
    b.settings,
    -- It was renewed if a third had passed.
    extract(epoch FROM %(lease)s::interval)::double precision * 2 / 3,
    s.submission
