-- hold_channel: a connection that listens holds this lock until it ends; create_batch.sql looks at it.
--
-- Only if it is the connection that it seems to be: behind a pooler, whose clients are told another process id,
-- nothing is heard, and the lock would stay with a connection of the pooler's. Returns a row if the lock is held.
SELECT pg_advisory_lock(hashtextextended(%(channel)s, 0)) WHERE pg_backend_pid() = %(pid)s
