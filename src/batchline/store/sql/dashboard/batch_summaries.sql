-- batch_summaries: what lists show of batches, in the order of `batches`: those of the tenant, and of governed ones those that
-- `viewer` has submitted (NULL: all). Others are left out, so nobody can find out whether they exist.
--
-- Cost: for each batch a few reads by key, and its free spans. Locks: none.
SELECT
    b.*,
    u.claimed,
    u.retrying,
    u.returned,
    file.filename,
    operation.operation,
    operation.approval,
    noted.at AS noted_at,
    noted.seconds AS noted_seconds,
    noted.items AS noted_items,
    now() AS read_at
FROM unnest(%(batches)s::uuid[]) WITH ORDINALITY AS wanted (id, nth)
CROSS JOIN LATERAL (
    SELECT *
    FROM batchline.current_batches AS c
    WHERE c.id = wanted.id
      AND c.tenant = %(tenant)s
      AND (%(viewer)s::text IS NULL OR c.submitted_by IS NULL OR c.submitted_by = %(viewer)s::text)
    LIMIT 1
) AS b
CROSS JOIN LATERAL batchline.unfinished_v2(b.id, b.finalizing_at IS NOT NULL) AS u
LEFT JOIN LATERAL (SELECT f.filename FROM batchline.files AS f WHERE f.id = b.file_id LIMIT 1) AS file ON true
LEFT JOIN LATERAL (
    SELECT o.operation, o.approval FROM batchline.operation_batches AS o WHERE o.batch_id = b.id LIMIT 1
) AS operation ON true
LEFT JOIN LATERAL (
    SELECT p.at, p.seconds, p.more_completed + p.more_failed AS items
    FROM batchline.progress AS p
    WHERE p.batch_id = b.id
    ORDER BY p.at DESC
    LIMIT 1
) AS noted ON true
ORDER BY wanted.nth
