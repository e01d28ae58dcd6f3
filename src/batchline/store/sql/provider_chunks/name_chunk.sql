-- name_chunk: note the provider's batch of a chunk whose batch was concluded or deleted while it was created: it is to be cancelled there.
-- Nothing happens while the span exists: then a worker holds the chunk, and finds out by itself. Locks: the chunk's row.
UPDATE batchline.provider_chunks AS c
SET state = 'submitted', provider_batch = %(provider_batch)s::text, submitted_at = now(), updated_at = now()
WHERE c.id = %(chunk)s::uuid
  AND c.state = 'creating'
  AND NOT EXISTS (SELECT FROM batchline.spans AS s WHERE s.id = c.span_id AND s.task_id = 'chunk:' || c.id)
RETURNING c.id
