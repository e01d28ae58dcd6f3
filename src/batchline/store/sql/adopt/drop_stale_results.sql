-- drop_stale_results: delete copied results whose request was put back or has finished anew, as a retry of failed requests
-- does. The pass that follows copies what they are now. Before the cutover only.
--
-- Only requests that were written within the last `transactions` are looked at: since the last complete pass began. The age
-- of a frozen row may look smaller than it is; then it is looked at in vain. Returns how many were deleted. Locks: these
-- results.
WITH
stale AS (
    SELECT r.lane_id, r.line_no
    FROM batchline.source_requests AS old
    JOIN batchline.adopted_batches AS b ON b.batch_id = old.batch_id
    JOIN batchline.source_batches AS old_batch ON old_batch.id = b.batch_id
    JOIN batchline.adopted_lines AS a ON a.template_id = old.template_id AND a.file_no = b.file_no
    JOIN batchline.adopted_lanes AS n ON n.batch_id = b.batch_id AND n.lane_no = a.lane_no
    JOIN batchline.results AS r ON r.lane_id = n.lane_id AND r.line_no = a.line_no
    WHERE age(old.written_by) <= %(transactions)s::bigint
      AND (
          r.outcome::text,
          r.attempt,
          r.finished_at
      ) IS DISTINCT FROM (
          CASE
              WHEN old.state = 'canceled' AND coalesce(old_batch.cancelling_at, old_batch.cancelled_at) IS NULL
                  THEN 'failed'
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
