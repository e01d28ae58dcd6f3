-- left_chunks: chunks whose lines all have a verdict, and which are not marked as done: a worker was lost in between. Those that are to
-- be cancelled at the provider are left to the task canceller. Taken ones are due again after a minute.
-- Locks: the chunks, skipping those that others have locked.
WITH
due AS (
    SELECT c.id
    FROM batchline.provider_chunks AS c
    -- One probe per open chunk: an anti-join may read all spans up to the newest.
    LEFT JOIN LATERAL (SELECT * FROM batchline.spans WHERE spans.id = c.span_id LIMIT 1) AS s ON s.task_id = 'chunk:' || c.id
    WHERE c.state <> 'done'
      AND c.due_at <= now()
      AND (%(batch)s::uuid IS NULL OR c.batch_id = %(batch)s::uuid)
      AND c.base_url = %(base_url)s::text
      AND c.api = %(api)s::text
      AND batchline.in_scope_v1(c.upstream, %(keys)s::text[], %(excluded)s::text[], %(below)s::text[])
      AND s.id IS NULL
      AND NOT EXISTS (
          SELECT FROM batchline.abandoned_tasks AS a WHERE a.upstream = c.upstream AND a.task_id = 'chunk:' || c.id
      )
    LIMIT 16
    FOR UPDATE OF c SKIP LOCKED
)
UPDATE batchline.provider_chunks AS c
SET due_at = now() + interval '1 minute'
FROM due
WHERE c.id = due.id
RETURNING c.id, c.file_id, c.provider_batch
