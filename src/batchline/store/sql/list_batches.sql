-- list_batches: newest first, page by page; `after` is the last batch of the page before.
SELECT b.*
FROM batches AS b
LEFT JOIN batches AS a ON a.id = %(after)s::uuid
WHERE b.tenant = %(tenant)s AND (a.id IS NULL OR (b.created_at, b.id) < (a.created_at, a.id))
ORDER BY b.created_at DESC, b.id DESC
LIMIT %(limit)s
