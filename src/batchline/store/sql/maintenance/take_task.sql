-- take_task: take one maintenance task that is due. It is due again in five to ten minutes, at random, so that workers
-- that were started together do not run tasks at the same time. A worker that dies during a task delays it by no more
-- than that. Locks: the task's row, skipping locked ones.
UPDATE batchline.maintenance_tasks
SET ran_at = now(), due_at = now() + make_interval(secs => 300 + 300 * random())
WHERE name = (
    SELECT name FROM batchline.maintenance_tasks WHERE due_at <= now() ORDER BY due_at LIMIT 1 FOR UPDATE SKIP LOCKED
)
RETURNING name
