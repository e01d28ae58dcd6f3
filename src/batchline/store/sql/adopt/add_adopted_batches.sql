-- add_adopted_batches: reserve lanes for the old batches whose file is copied. Returns how many were added. Locks: only its
-- own rows.
WITH
batch AS (
    INSERT INTO batchline.adopted_batches (batch_id, file_no)
    SELECT b.id, f.file_no
    FROM batchline.source_batches AS b
    JOIN batchline.adopted_files AS f ON f.file_id = b.file_id AND f.copied = f.line_count
    WHERE b.deleted_at IS NULL
    ON CONFLICT (batch_id) DO NOTHING
    RETURNING batch_id, file_no
),
lane AS (
    INSERT INTO batchline.adopted_lanes (lane_id, batch_id, lane_no)
    SELECT nextval(pg_get_serial_sequence('batchline.lanes', 'id')), batch.batch_id, part.lane_no
    FROM batch
    JOIN batchline.adopted_file_lanes AS part ON part.file_no = batch.file_no
)
SELECT count(*)::integer FROM batch
