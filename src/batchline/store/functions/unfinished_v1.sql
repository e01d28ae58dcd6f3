-- unfinished: how many claimed and unfinished items of a batch are in progress, and how many wait for another try.
--
-- In progress: a worker holds the item, or a provider runs its task. Retrying: it is in a free span that is not due yet. If
-- the batch is `closing`, free items never run again, so they are neither. The rest of the batch follows from these two, its
-- counters and its timestamps (model/batch.py). Call it in the statement that reads those: one snapshot, so all states
-- add up to the total at every moment.
--
-- No locks. Cost: one read of the batch's spans by spans_batch. A batch that is frozen or has ended has none.
CREATE FUNCTION batchline.unfinished_v1(batch uuid, closing boolean)
RETURNS TABLE (in_progress integer, retrying integer)
LANGUAGE sql STABLE
AS $$
SELECT
    coalesce(sum(upper(piece) - lower(piece)) FILTER (
        WHERE s.worker_id IS NOT NULL OR (s.task_id IS NOT NULL AND NOT closing)
    ), 0)::integer,
    coalesce(sum(upper(piece) - lower(piece)) FILTER (
        WHERE s.worker_id IS NULL AND s.task_id IS NULL AND s.available_at > now() AND NOT closing
    ), 0)::integer
FROM batchline.spans AS s
CROSS JOIN LATERAL unnest(s.outstanding) AS piece
WHERE s.batch_id = batch
$$;
