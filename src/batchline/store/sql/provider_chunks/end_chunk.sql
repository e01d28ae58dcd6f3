-- end_chunk: a chunk is done: all its lines have a verdict, or its batch has ended. Nothing happens while its span exists.
-- Locks: the chunk's row.
UPDATE batchline.provider_chunks AS c
SET state = 'done',
    missing = c.missing + %(missing)s::integer,
    unknown = %(unknown)s::integer,
    doubled = %(doubled)s::integer,
    unreadable = %(unreadable)s::integer,
    error = coalesce(%(error)s::text, c.error),
    updated_at = now()
WHERE c.id = %(chunk)s::uuid
  AND c.state <> 'done'
  AND NOT EXISTS (SELECT FROM batchline.spans AS s WHERE s.id = c.span_id AND s.task_id = 'chunk:' || c.id)
RETURNING c.id
