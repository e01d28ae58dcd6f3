-- forget_workers: delete workers whose lease has expired and that hold neither spans nor a batch to finalize.
--
-- Locks: their rows, skipping those that are locked: a claim of such a worker may hold one while it waits for a lane.
DELETE FROM batchline.workers
WHERE id IN (
    SELECT w.id
    FROM batchline.workers AS w
    WHERE w.lease_until < now()
      AND NOT EXISTS (SELECT FROM batchline.spans AS s WHERE s.worker_id = w.id)
      AND NOT EXISTS (SELECT FROM batchline.batches AS b WHERE b.finalizer = w.id AND b.ended_at IS NULL)
    FOR UPDATE SKIP LOCKED
)
