-- delete_batch: delete a batch and its lanes, and mark its output and error files as deleted, also those of earlier ends. The
-- rest of it is deleted later, in chunks: drop_deleted_lanes, drop_file_lines. Returns no row if it has not ended and `force`
-- is false, and for governed batches, whose history is kept.
--
-- A batch that has not ended has spans. The tasks among them are noted, to be cancelled at their providers.
--
-- A worker may still hold some of its items. Its settle waits for the batch row, finds it gone and counts nothing. A
-- finalizer that is about to commit finds no batch to end, and deletes its files.
--
-- Locks: the batch row, then its lanes in id order, as close does; then the rows of its files; in triggers the row of the
-- tenant. The caller has locked the spans before (lock_spans), and the input (lock_deletable). A span that was created since is
-- skipped if it is locked: its settle waits for the batch row.
WITH
batch AS (
    DELETE FROM batchline.batches
    WHERE id = %(batch)s AND submitted_by IS NULL AND (ended_at IS NOT NULL OR %(force)s::boolean)
    RETURNING id, settings, file_id, earlier_files || ARRAY[output_file_id, error_file_id] AS made
),
lane AS (
    SELECT n.id, n.url, n.model
    FROM batchline.lanes AS n
    JOIN batch ON batch.id = n.batch_id
    ORDER BY n.id
    FOR UPDATE OF n
),
locked AS (
    SELECT s.id
    FROM batchline.spans AS s
    JOIN batch ON batch.id = s.batch_id
    FOR UPDATE OF s SKIP LOCKED
),
span AS (
    DELETE FROM batchline.spans AS s
    USING locked
    WHERE s.id = locked.id
    RETURNING s.upstream, s.task_id, s.batch_id, s.lane_id
),
task AS (
    INSERT INTO batchline.abandoned_tasks (upstream, task_id, batch_id, lane_id, url, model, settings)
    SELECT span.upstream, span.task_id, span.batch_id, span.lane_id, lane.url, lane.model, batch.settings
    FROM span
    JOIN lane ON lane.id = span.lane_id
    JOIN batch ON batch.id = span.batch_id
    WHERE span.task_id IS NOT NULL
    ON CONFLICT DO NOTHING
    RETURNING 1
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
    coalesce((SELECT jsonb_agg(jsonb_build_array(id, no, object_key)) FROM file), '[]') AS files,
    (SELECT count(*) FROM span)::integer AS spans,
    (SELECT pg_notify('batchline', 'abandoned ' || batch.id) WHERE EXISTS (SELECT FROM task)) IS NULL AS notified
FROM batch
