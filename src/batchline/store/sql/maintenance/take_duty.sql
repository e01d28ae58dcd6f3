-- take_duty: one due duty for whoever asks first. It is due again in five to ten minutes, at random, so
-- that workers which were started together do not sweep together (seed 004). A worker that dies over a
-- duty has delayed it by no more than that.
UPDATE duties
SET ran_at = now(), due_at = now() + make_interval(secs => 300 + 300 * random())
WHERE name = (
    SELECT name FROM duties WHERE due_at <= now() ORDER BY due_at LIMIT 1 FOR UPDATE SKIP LOCKED
)
RETURNING name
