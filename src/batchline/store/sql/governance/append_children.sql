-- append_children: more lines for a batch that is held, under lock_operation: so either a release comes after this and
-- they run, or it came before and the caller was told so.
--
-- The lane is shut and nothing of it was handed out, but its cursor need not be looked at: lines come at its end.
-- One of them that needs an approval makes the batch wait for one, also where it was approved without it.
-- Locks: the lane and the file's rows, after the batch row.
WITH
batch AS (
    SELECT b.id, b.file_id, b.total FROM batchline.batches AS b WHERE b.id = %(batch)s
),
file AS (
    UPDATE batchline.files AS f
    SET line_count = f.line_count + cardinality(%(bodies)s::text[]), bytes = f.bytes + %(bytes)s
    FROM batch
    WHERE f.id = batch.file_id
    RETURNING f.no
),
part AS (
    UPDATE batchline.file_lanes AS p
    SET total = p.total + cardinality(%(bodies)s::text[])
    FROM file
    WHERE p.file_no = file.no AND p.lane_no = 0
),
line AS (
    INSERT INTO batchline.lines (file_no, lane_no, ordinal, line_no, custom_id, body)
    SELECT file.no, 0, batch.total + child.nth - 1, batch.total + child.nth, child.custom_id, child.body
    FROM file
    CROSS JOIN batch
    CROSS JOIN unnest(%(custom_ids)s::text[], %(bodies)s::text[]) WITH ORDINALITY AS child (custom_id, body, nth)
),
lane AS (
    UPDATE batchline.lanes AS n
    SET total = n.total + cardinality(%(bodies)s::text[]), drained = false
    FROM batch
    WHERE n.batch_id = batch.id
),
approval AS (
    UPDATE batchline.operation_batches
    SET approval = 'pending', decided_by = NULL, decided_at = NULL, decision_reason = NULL
    WHERE batch_id = %(batch)s AND approval IN ('not_required', 'approved') AND %(needs_approval)s
)
UPDATE batchline.batches AS b
SET total = b.total + cardinality(%(bodies)s::text[])
FROM batch
WHERE b.id = batch.id
