-- append_children: add lines to a batch that is held. Runs under lock_operation, so either a later release includes the
-- lines, or an earlier release makes the caller refuse the append.
--
-- The lane is closed and nothing of it was claimed. Its cursor needs no change, because the lines go to its end. If one
-- of them needs an approval, the whole batch waits for one. An approval that was given before is void: it was for less.
-- The lines of a batch that runs in steps are held back (hold_back). Locks: the lane and the
-- rows of the file, after the batch row.
WITH
batch AS (
    SELECT b.id, b.file_id, b.total, b.step_total FROM batchline.batches AS b WHERE b.id = %(batch)s
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
    SET total = n.total + cardinality(%(bodies)s::text[]), drained = batch.step_total IS NOT NULL
    FROM batch
    WHERE n.batch_id = batch.id
),
approval AS (
    UPDATE batchline.operation_batches
    SET approval = 'pending', decided_by = NULL, decided_at = NULL, decision_reason = NULL, decided_digest = NULL
    WHERE batch_id = %(batch)s AND (approval = 'approved' OR (approval = 'not_required' AND %(needs_approval)s))
)
UPDATE batchline.batches AS b
SET total = b.total + cardinality(%(bodies)s::text[])
FROM batch
WHERE b.id = batch.id
