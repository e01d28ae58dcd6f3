-- create_adopted_lanes: create the lanes of the batches that create_adopted_batches has just created, with their cursors.
-- Lanes of a cancelled batch are closed. Locks: only its own rows.
INSERT INTO batchline.lanes (
    id, batch_id, tenant, key, deadline, file_no, lane_no, model, url, next, total, open, drained
)
OVERRIDING SYSTEM VALUE
SELECT
    n.lane_id,
    made.id,
    made.tenant,
    coalesce(%(upstream)s::text, p.model),
    -- As in create_batch.
    coalesce(made.expires_at, '9999-12-31 00:00:00+00'),
    b.file_no,
    n.lane_no,
    p.model,
    p.url,
    n.next,
    p.total,
    made.cancelling_at IS NULL,
    n.next = p.total
FROM batchline.adopted_batches AS b
JOIN batchline.batches AS made ON made.id = b.batch_id
JOIN batchline.adopted_lanes AS n ON n.batch_id = b.batch_id
JOIN batchline.adopted_file_lanes AS p ON p.file_no = b.file_no AND p.lane_no = n.lane_no
WHERE b.reason IS NULL
