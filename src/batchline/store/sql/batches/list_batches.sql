-- list_batches: all but governed ones, newest first, page by page; `after_at` and `after_id` are of the last batch of the page before, or
-- beyond all. One range of an index, however far the page is from the start, and the free spans of the batches on the page.
SELECT b.*, u.claimed, u.retrying, u.returned
FROM (
    SELECT *
    FROM batchline.current_batches
    WHERE tenant = %(tenant)s
      AND submitted_by IS NULL
      AND (created_at, id) < (%(after_at)s::timestamptz, %(after_id)s::uuid)
    ORDER BY created_at DESC, id DESC
    LIMIT %(limit)s
) AS b
CROSS JOIN LATERAL batchline.unfinished_v2(b.id, b.finalizing_at IS NOT NULL) AS u
ORDER BY b.created_at DESC, b.id DESC
