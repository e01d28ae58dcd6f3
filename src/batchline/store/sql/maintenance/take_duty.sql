-- take_duty: take one maintenance task that is due. The first worker that asks gets it. The task is due again after
-- a random five to ten minutes, so that workers which were started together do not sweep together. A worker
-- that dies during a task delays it by no more than that.
UPDATE duties
SET ran_at = now(), due_at = now() + make_interval(secs => 300 + 300 * random())
WHERE name = (
    SELECT name FROM duties WHERE due_at <= now() ORDER BY due_at LIMIT 1 FOR UPDATE SKIP LOCKED
)
RETURNING name
