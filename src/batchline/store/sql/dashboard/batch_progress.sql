-- batch_progress: what settles have noted of one batch, oldest first. A batch has some hundred rows. Locks: none.
SELECT p.at, p.seconds, p.more_completed, p.more_failed
FROM batchline.progress AS p
WHERE p.batch_id = %(batch)s
ORDER BY p.at DESC
LIMIT %(limit)s
