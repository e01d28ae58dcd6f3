-- drop_stale_results: delete copied results whose request was put back or has finished anew since, as a retry of failed
-- requests does. The next pass copies what they are now. Before the cutover only. Returns how many. Locks: these rows.
WITH
stale AS (
    SELECT r.lane_id, r.line_no
    FROM batchline.results AS r
    JOIN batchline.adopted_lanes AS n ON n.lane_id = r.lane_id
    JOIN batchline.adopted_batches AS b ON b.batch_id = n.batch_id
    JOIN batchline.source_batches AS old_batch ON old_batch.id = b.batch_id
    JOIN batchline.adopted_lines AS a ON a.file_no = b.file_no AND a.line_no = r.line_no
    LEFT JOIN batchline.source_requests AS old ON old.batch_id = b.batch_id AND old.template_id = a.template_id
    WHERE (
        r.outcome::text,
        r.attempt,
        r.finished_at
    ) IS DISTINCT FROM (
        CASE
            WHEN old.state = 'canceled' AND coalesce(old_batch.cancelling_at, old_batch.cancelled_at) IS NULL THEN 'failed'
            ELSE old.state
        END,
        old.retry_attempt + 1,
        coalesce(old.ended_at, r.finished_at)
    )
),
dropped AS (
    DELETE FROM batchline.results AS r
    USING stale
    WHERE r.lane_id = stale.lane_id AND r.line_no = stale.line_no
    RETURNING 1
)
SELECT count(*)::integer FROM dropped
