-- list_operations: governed batches of a tenant, or of one of its users, newest first, page by page.
--
-- `after` is the last batch of the page before, or NULL. Locks: none.
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
  AND (%(user)s::text IS NULL OR o.user_id = %(user)s::text)
  AND (%(operation)s::text IS NULL OR o.operation = %(operation)s::text)
  AND (%(approval)s::text IS NULL OR o.approval = %(approval)s::text)
  AND (
      %(after)s::uuid IS NULL
      OR (o.created_at, o.batch_id) < (
          SELECT a.created_at, a.batch_id FROM operation_batches AS a WHERE a.batch_id = %(after)s::uuid
      )
  )
ORDER BY o.created_at DESC, o.batch_id DESC
LIMIT %(limit)s
