-- doctor_notes: list what is not wrong, but worth knowing: items held by dead workers, which the next claim takes over;
-- items that a provider may have accepted without an answer; chunks of a provider's batch that have no lines any more, and which a
-- relay or the task canceller ends;
-- batches whose files could not be written yet; and rows of deleted batches and files, which the maintenance task
-- `orphans` removes.
WITH
note AS (
    SELECT
        'worker_gone' AS name,
        s.batch_id,
        s.lane_id,
        format(
            'span %%s with %%s items is held by worker %%s, whose lease has expired',
            s.id,
            batchline.span_size(s.outstanding),
            s.worker_id
        ) AS message
    FROM batchline.spans AS s
    JOIN batchline.workers AS w ON w.id = s.worker_id
    WHERE w.lease_until < now()
      AND (%(batch)s::uuid IS NULL OR s.batch_id = %(batch)s::uuid)
    UNION ALL
    SELECT
        'submission_unknown',
        s.batch_id,
        s.lane_id,
        format('the provider may have accepted %%s items without an answer', sum(batchline.span_size(s.outstanding)))
    FROM batchline.spans AS s
    WHERE s.submission = 'unknown'
      AND s.worker_id IS NULL
      AND (%(batch)s::uuid IS NULL OR s.batch_id = %(batch)s::uuid)
    GROUP BY s.batch_id, s.lane_id
    UNION ALL
    SELECT
        'chunk_left',
        c.batch_id,
        c.lane_id,
        format('chunk %%s of upstream %%s has no lines any more, and is to be ended at the provider', c.id, c.upstream)
    FROM batchline.provider_chunks AS c
    WHERE c.state <> 'done'
      AND NOT EXISTS (SELECT FROM batchline.spans AS s WHERE s.id = c.span_id AND s.task_id = 'chunk:' || c.id)
      AND (%(batch)s::uuid IS NULL OR c.batch_id = %(batch)s::uuid)
    UNION ALL
    SELECT
        'finalize_failed',
        b.id,
        NULL,
        format(
            'finalizing has failed %%s times; the next try is not before %%s; the last error was: %%s',
            b.finalize_failures,
            to_char(b.finalize_after AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"'),
            b.finalize_error
        )
    FROM batchline.batches AS b
    WHERE b.finalizing_at IS NOT NULL
      AND b.ended_at IS NULL
      AND b.finalize_failures > 0
      AND (%(batch)s::uuid IS NULL OR b.id = %(batch)s::uuid)
    UNION ALL
    SELECT 'orphans', NULL, r.lane_id, format('%%s results belong to a lane that does not exist', count(*))
    FROM batchline.results AS r
    WHERE %(batch)s::uuid IS NULL
      AND NOT EXISTS (SELECT FROM batchline.lanes AS n WHERE n.id = r.lane_id)
      -- Copied for an adoption, and reserved.
      AND NOT EXISTS (SELECT FROM batchline.adopted_lanes AS n WHERE n.lane_id = r.lane_id)
    GROUP BY r.lane_id
    UNION ALL
    SELECT 'orphans', NULL, NULL, format('file no. %%s does not exist, but %%s of its lines are left', l.file_no, count(*))
    FROM batchline.lines AS l
    WHERE %(batch)s::uuid IS NULL
      AND NOT EXISTS (SELECT FROM batchline.files AS f WHERE f.no = l.file_no)
      AND NOT EXISTS (SELECT FROM batchline.adopted_files AS f WHERE f.file_no = l.file_no)
    GROUP BY l.file_no
)
SELECT name, NULL::uuid AS file_id, batch_id, lane_id, message
FROM note
ORDER BY name, batch_id, lane_id, message
LIMIT %(max_findings)s
