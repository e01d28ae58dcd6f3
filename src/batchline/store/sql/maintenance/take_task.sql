-- take_task: one due maintenance task, for the first worker that asks. It is due again in five to ten minutes, at
-- random, so that workers that were started together do not sweep together. A worker that dies during a task delays
-- it by no more than that.
UPDATE batchline.maintenance_tasks
SET ran_at = now(), due_at = now() + make_interval(secs => 300 + 300 * random())
WHERE name = (
    SELECT name FROM batchline.maintenance_tasks WHERE due_at <= now() ORDER BY due_at LIMIT 1 FOR UPDATE SKIP LOCKED
)
RETURNING name
