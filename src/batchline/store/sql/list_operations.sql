-- list_operations: governed batches of a tenant, newest first, page by page.
--
-- `after` is the last batch of the page before, or NULL. One range of an index, however far the page is from the start:
-- the longest page stands inside as a number, as in list_files_newest. Locks: none.
SELECT *
FROM (
    SELECT
        b.id,
        b.tenant,
        o.user_id,
        o.operation,
        o.request_id,
        o.reason,
        o.approval,
        o.decided_by,
        o.decided_at,
        o.decision_reason,
        o.held,
        o.released_at,
        o.retries,
        o.retried_at,
        b.total,
        b.completed,
        b.failed,
        o.created_at,
        b.expires_at,
        b.paused_at,
        b.cancelling_at,
        b.expiring_at,
        b.finalizing_at,
        b.ended_at
    FROM operation_batches AS o
    JOIN batches AS b ON b.id = o.batch_id
    WHERE o.tenant = %(tenant)s
      AND (o.created_at, o.batch_id) < (
          coalesce((SELECT a.created_at FROM operation_batches AS a WHERE a.batch_id = %(after)s::uuid), 'infinity'),
          coalesce(%(after)s::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
      )
      AND (%(operation)s::text IS NULL OR o.operation = %(operation)s::text)
      AND (%(approval)s::text IS NULL OR o.approval = %(approval)s::text)
    ORDER BY o.created_at DESC, o.batch_id DESC
    LIMIT 1001
) AS page
LIMIT %(limit)s
