-- hold_channel: a connection that hears notifications holds this lock until it ends; create_batch.sql looks at it.
SELECT pg_advisory_lock(hashtextextended(%(channel)s, 0))
