-- unfinished: how many claimed and unfinished items of a batch are in progress, how many wait for another try, and how many
-- can be claimed again now.
--
-- In progress: a worker holds the item, or a provider runs its task. Retrying: it is in a free span that is not due yet.
-- Returned: its free span is due. The other states follow from these, the counters and the timestamps of the batch
-- (model/batch.py). Call it in the statement that reads those: one snapshot, so all states add up to the total at every
-- moment.
--
-- No locks. Cost: one read of the batch's spans by spans_batch. A batch that is frozen or has ended has none.
CREATE FUNCTION batchline.unfinished_v1(batch uuid)
RETURNS TABLE (in_progress integer, retrying integer, returned integer)
LANGUAGE sql STABLE
AS $$
SELECT
    coalesce(sum(upper(piece) - lower(piece)) FILTER (WHERE s.worker_id IS NOT NULL OR s.task_id IS NOT NULL), 0)::integer,
    coalesce(sum(upper(piece) - lower(piece)) FILTER (
        WHERE s.worker_id IS NULL AND s.task_id IS NULL AND s.available_at > now()
    ), 0)::integer,
    coalesce(sum(upper(piece) - lower(piece)) FILTER (
        WHERE s.worker_id IS NULL AND s.task_id IS NULL AND s.available_at <= now()
    ), 0)::integer
FROM batchline.spans AS s
CROSS JOIN LATERAL unnest(s.outstanding) AS piece
WHERE s.batch_id = batch
$$;
