-- erase_batches: delete a chunk of batches of a tenant that is being erased, with their lanes and all that a foreign key
-- deletes. A trigger notes the lanes and the batches; the rest is deleted in chunks: drop_deleted_lanes, erase_events.
-- Returns the ids.
--
-- Only batches that have ended or are frozen: they have no spans, and no result can be added. Not while a live worker writes
-- their files, and not while a task of theirs is to be cancelled at a provider: without the batch nobody would know
-- whose task it is.
--
-- Locks: the batch rows in id order, skipping locked ones; then their lanes in id order, as delete_batch.
WITH
candidate AS (
    SELECT b.id
    FROM batchline.batches AS b
    WHERE b.tenant = %(tenant)s
      AND (b.ended_at IS NOT NULL OR b.finalizing_at IS NOT NULL)
      AND (
          b.ended_at IS NOT NULL
          OR NOT EXISTS (SELECT FROM batchline.workers AS w WHERE w.id = b.finalizer AND w.lease_until >= now())
      )
      AND NOT EXISTS (SELECT FROM batchline.abandoned_tasks AS a WHERE a.batch_id = b.id)
      AND EXISTS (SELECT FROM batchline.tenants AS t WHERE t.name = b.tenant AND t.erasing_at IS NOT NULL)
    ORDER BY b.created_at, b.id
    LIMIT %(chunk)s
),
batch AS (
    SELECT b.id
    FROM batchline.batches AS b
    WHERE b.id = ANY (ARRAY(SELECT id FROM candidate))
    ORDER BY b.id
    FOR UPDATE SKIP LOCKED
),
lane AS (
    SELECT n.id
    FROM batchline.lanes AS n
    WHERE n.batch_id = ANY (ARRAY(SELECT id FROM batch))
    ORDER BY n.id
    FOR UPDATE
),
erased AS (
    DELETE FROM batchline.batches AS b
    USING batch
    -- Counted, so that the lanes are locked in this order, and not in the order of the cascade.
    WHERE b.id = batch.id AND (SELECT count(*) FROM lane) >= 0
    RETURNING b.id
)
SELECT id FROM erased
