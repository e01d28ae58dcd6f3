-- delete_batch: delete a batch and its lanes, and mark its output and error files as deleted, also those of earlier ends. The
-- rest of it is deleted later, in chunks: drop_deleted_lanes, drop_file_lines. Returns no row if it has not ended and `force`
-- is false, and for governed batches, whose history is kept.
--
-- A worker may still hold some of its items. Its settle waits for the batch row, finds it gone and counts nothing. A
-- finalizer that is about to commit finds no batch to end, and deletes its files.
--
-- Locks: the batch row, then its lanes in id order, as close does; then the rows of its files.
WITH
batch AS (
    DELETE FROM batchline.batches
    WHERE id = %(batch)s AND submitted_by IS NULL AND (ended_at IS NOT NULL OR %(force)s::boolean)
    RETURNING id, file_id, earlier_files || ARRAY[output_file_id, error_file_id] AS made
),
lane AS (
    SELECT n.id
    FROM batchline.lanes AS n
    JOIN batch ON batch.id = n.batch_id
    ORDER BY n.id
    FOR UPDATE OF n
),
file AS (
    UPDATE batchline.files AS f
    SET deleted_at = now()
    FROM batch
    WHERE f.id = ANY (batch.made) AND f.deleted_at IS NULL
    RETURNING f.id, f.no, f.object_key
)
SELECT
    batch.file_id,
    -- Counted, so that the lanes are locked in this order, and not in the order of the cascade.
    (SELECT count(*) FROM lane)::integer AS lanes,
    coalesce((SELECT jsonb_agg(jsonb_build_array(id, no, object_key)) FROM file), '[]') AS files
FROM batch
