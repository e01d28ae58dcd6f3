-- forget_deleted_batches: delete a chunk of notes of deleted batches to which nothing refers any more: of one tenant, or of
-- all (NULL). Returns the number of notes deleted.
--
-- What comes later is deleted by its own means: a task that a provider accepts too late is in abandoned_tasks until it is
-- cancelled. Locks: these rows, skipping locked ones.
WITH
done AS (
    SELECT d.batch_id
    FROM batchline.deleted_batches AS d
    WHERE (%(tenant)s::text IS NULL OR d.tenant = %(tenant)s::text)
      AND NOT EXISTS (SELECT FROM batchline.deleted_lanes AS n WHERE n.batch_id = d.batch_id)
      AND NOT EXISTS (SELECT FROM batchline.abandoned_tasks AS a WHERE a.batch_id = d.batch_id)
      AND NOT EXISTS (SELECT FROM batchline.outbox AS o WHERE o.batch_id = d.batch_id)
      AND NOT EXISTS (SELECT FROM batchline.deliveries AS w WHERE w.batch_id = d.batch_id)
      AND NOT EXISTS (SELECT FROM batchline.hook_deliveries AS h WHERE h.batch_id = d.batch_id)
    LIMIT %(chunk)s
    FOR UPDATE OF d SKIP LOCKED
),
gone AS (
    DELETE FROM batchline.deleted_batches AS d
    USING done
    WHERE d.batch_id = done.batch_id
    RETURNING 1
)
SELECT count(*)::integer FROM gone
