-- read_chunk: a chunk as it stands, if `worker` holds its span; no row: another worker has it, or it has ended. `closing`: its batch
-- is being cancelled or has expired. No locks.
SELECT
    c.id,
    c.batch_id,
    c.lane_id,
    c.span_id,
    c.upstream,
    c.state,
    c.ordinals,
    c.lines,
    c.bytes,
    c.file_id,
    c.provider_batch,
    c.searches,
    c.cancelling,
    c.refused,
    c.resubmissions,
    extract(epoch FROM now() - c.creating_at)::float8 AS creating_for,
    extract(epoch FROM now() - c.searched_at)::float8 AS searched_ago,
    extract(epoch FROM c.created_at)::float8 AS created_at,
    extract(epoch FROM now() - c.submitted_at)::float8 AS age,
    extract(epoch FROM n.deadline - now())::float8 AS seconds_left,
    (b.cancelling_at IS NOT NULL OR b.expiring_at IS NOT NULL) AS closing,
    extract(epoch FROM now() - least(b.cancelling_at, b.expiring_at))::float8 AS closing_for,
    b.paused_at IS NOT NULL AS paused
FROM batchline.provider_chunks AS c
CROSS JOIN LATERAL (SELECT * FROM batchline.spans WHERE spans.id = c.span_id LIMIT 1) AS s
CROSS JOIN LATERAL (SELECT * FROM batchline.lanes WHERE lanes.id = c.lane_id LIMIT 1) AS n
CROSS JOIN LATERAL (SELECT * FROM batchline.batches WHERE batches.id = c.batch_id LIMIT 1) AS b
WHERE c.id = %(chunk)s AND c.state <> 'done' AND s.worker_id = %(worker)s AND s.task_id = 'chunk:' || c.id
