-- finished_requests: the finished requests in a range of pages of the old table that have no result here yet.
--
-- A request that was canceled alone, in a batch that was not, counts as finished: it must not run. Requests that move to
-- pages before the range are found by the next pass; the last pass runs while nobody writes. `also_copied`: those with a
-- result, too, and of all only one in `one_in`: for verify. `transactions`: only those that were written within so many
-- transactions. Locks: none.
SELECT
    b.batch_id,
    n.lane_id,
    a.line_no,
    a.ordinal,
    l.custom_id,
    r.id::text AS request_id,
    r.state,
    r.retry_attempt,
    r.response_status,
    r.response_body,
    r.error,
    coalesce(r.ended_at, now()) AS finished_at
FROM batchline.source_requests AS r
JOIN batchline.adopted_batches AS b ON b.batch_id = r.batch_id
JOIN batchline.source_batches AS old ON old.id = r.batch_id
JOIN batchline.adopted_lines AS a ON a.template_id = r.template_id AND a.file_no = b.file_no
JOIN batchline.adopted_lanes AS n ON n.batch_id = b.batch_id AND n.lane_no = a.lane_no
JOIN batchline.lines AS l ON l.file_no = a.file_no AND l.lane_no = a.lane_no AND l.ordinal = a.ordinal
WHERE r.position >= %(first)s::text::tid
  AND r.position < %(beyond)s::text::tid
  AND (
      r.state IN ('completed', 'failed')
      OR (r.state = 'canceled' AND old.cancelling_at IS NULL AND old.cancelled_at IS NULL)
  )
  AND (%(transactions)s::bigint IS NULL OR age(r.written_by) <= %(transactions)s::bigint)
  AND mod(hashtext(r.id::text)::bigint, %(one_in)s::bigint) = 0
  AND (
      %(also_copied)s::boolean
      OR NOT EXISTS (SELECT FROM batchline.results AS known WHERE known.lane_id = n.lane_id AND known.line_no = a.line_no)
  )
