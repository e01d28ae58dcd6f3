-- reuse_sources: the lanes of earlier batches whose answers a new batch over a file may reuse, newest batch first.
--
-- Same tenant, same upstream, same model and url (`target_lane_no` is the lane of the new file that has them). The upstream
-- counts as for `run`: with or without /v1. Never used: batches that are purged or will be, batches whose output or input file
-- is deleted or has expired, governed batches, and batches of asynchronous providers. `complete`: every line has a completed
-- answer; otherwise each answer must be looked up. No locks.
--
-- Cost: one read of the tenant's batches, by batches_newest.
CREATE FUNCTION batchline.reuse_sources_v1(new_tenant text, new_file_no bigint, new_upstream text, excluded uuid)
RETURNS TABLE (
    lane_id bigint, file_no bigint, lane_no integer, target_lane_no integer, complete boolean, total integer, nth bigint
)
LANGUAGE sql STABLE
AS $$
SELECT
    n.id,
    n.file_no,
    n.lane_no,
    part.lane_no,
    b.completed = b.total,
    n.total,
    row_number() OVER (ORDER BY b.created_at DESC, b.id DESC, n.id)
FROM batchline.file_lanes AS part
JOIN batchline.lanes AS n ON n.model = part.model AND n.url = part.url
JOIN batchline.batches AS b ON b.id = n.batch_id
JOIN batchline.files AS input ON input.id = b.file_id
LEFT JOIN batchline.files AS output ON output.id = b.output_file_id
WHERE part.file_no = new_file_no
  AND b.tenant = new_tenant
  AND n.tenant = new_tenant
  AND b.id IS DISTINCT FROM excluded
  AND b.submitted_by IS NULL
  AND b.purging_at IS NULL
  AND (b.completed > 0 OR EXISTS (SELECT FROM batchline.counters AS c WHERE c.batch_id = b.id AND c.completed > 0))
  AND NOT b.settings ? 'provider'
  AND regexp_replace(coalesce(b.settings ->> 'upstream', ''), '(/v1)?/?$', '')
    = regexp_replace(coalesce(new_upstream, ''), '(/v1)?/?$', '')
  AND input.deleted_at IS NULL
  AND (input.expires_at IS NULL OR input.expires_at > now())
  AND (
      b.output_file_id IS NULL
      OR (output.deleted_at IS NULL AND (output.expires_at IS NULL OR output.expires_at > now()))
  )
$$;
