-- take_abandoned_tasks: tasks of providers whose batch has ended without them or was deleted, to be cancelled at the
-- provider. What is taken is due again after a minute, unless it is dropped before. Chunks of any `run` are in every scope: that command
-- may never run again, and its settings are stored with the task.
--
-- The limit is small, because each is one request. Locks: the tasks, skipping those that others have locked.
WITH
due AS (
    SELECT t.upstream, t.task_id
    FROM batchline.abandoned_tasks AS t
    WHERE t.available_at <= now()
      AND (
          starts_with(t.upstream, 'run:batch:') AND starts_with(t.task_id, 'chunk:')
          OR batchline.in_scope_v1(t.upstream, %(keys)s::text[], %(excluded)s::text[], %(below)s::text[])
          AND (%(batch)s::uuid IS NULL OR t.batch_id = %(batch)s::uuid)
      )
    ORDER BY t.available_at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
)
UPDATE batchline.abandoned_tasks AS t
SET attempts = t.attempts + 1, available_at = now() + interval '1 minute'
FROM due
WHERE t.upstream = due.upstream AND t.task_id = due.task_id
RETURNING t.upstream, t.task_id, t.batch_id, t.lane_id, t.attempts, t.url, t.model, t.settings
