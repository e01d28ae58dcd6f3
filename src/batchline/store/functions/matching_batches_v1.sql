-- matching_batches: the batches of a tenant that match a filter, from the newest to the oldest, after a position. Each
-- part of the filter that is NULL matches all.
--
-- `words`, in lower case: part of a file's name, a model, an operation or the metadata. `viewer`: of governed batches, only this
-- user's; NULL: all. `open`: some of its lines may still be sent. No locks.
--
-- Cost: one range of the index of the tenant's batches, up to as many matches as are wanted, or to its end.
CREATE FUNCTION batchline.matching_batches_v1(
    of_tenant text, viewer text, words text, statuses text[], of_kind text, of_model text,
    not_before timestamptz, until timestamptz, ids uuid[], position_at timestamptz, position_id uuid, max_batches integer
) RETURNS TABLE (id uuid, created_at timestamptz, open boolean)
LANGUAGE sql STABLE
AS $$
SELECT b.id, b.created_at, b.finalizing_at IS NULL AND b.ended_at IS NULL
FROM batchline.batches AS b
WHERE b.tenant = of_tenant
  AND (b.created_at, b.id) < (position_at, position_id)
  AND b.created_at < coalesce(until, 'infinity')
  AND b.created_at >= coalesce(
      greatest(not_before, (SELECT min(named.created_at) FROM batchline.batches AS named WHERE named.id = ANY (ids))),
      '-infinity'
  )
  AND (ids IS NULL OR b.id = ANY (ids))
  AND (b.submitted_by IS NULL OR viewer IS NULL OR b.submitted_by = viewer)
  AND (of_kind IS NULL OR (of_kind = 'operation') = (b.submitted_by IS NOT NULL))
  AND (
      of_model IS NULL
      OR b.model = of_model
      OR b.model IS NULL AND EXISTS (SELECT FROM batchline.lanes AS n WHERE n.batch_id = b.id AND n.model = of_model)
  )
  AND (statuses IS NULL OR batchline.batch_status_v1(
      b.cancelled_at, b.expired_at, b.failed_at, b.completed_at, b.cancelling_at, b.finalizing_at, b.paused_at, b.held_at,
      b.in_progress_at
  ) = ANY (statuses))
  AND (
      words IS NULL
      OR strpos(lower(b.model), words) > 0
      OR strpos(lower(b.metadata::text), words) > 0
      OR EXISTS (SELECT FROM batchline.files AS f WHERE f.id = b.file_id AND strpos(lower(f.filename), words) > 0)
      OR EXISTS (
          SELECT FROM batchline.operation_batches AS o WHERE o.batch_id = b.id AND strpos(o.operation, words) > 0
      )
  )
ORDER BY b.created_at DESC, b.id DESC
LIMIT max_batches
$$;
