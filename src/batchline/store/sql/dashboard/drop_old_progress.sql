-- drop_old_progress: delete a chunk of notes older than `older_than`. Returns how many. Locks: the deleted rows; those that another
-- worker deletes are skipped. Cost: blocks of the table with old notes, found by a small index.
WITH old AS (
    SELECT p.batch_id, p.at
    FROM batchline.progress AS p
    WHERE p.at < now() - %(older_than)s::interval
    LIMIT %(chunk)s
    FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM batchline.progress AS p
    USING old
    WHERE p.batch_id = old.batch_id AND p.at = old.at
    RETURNING 1
)
SELECT count(*)::integer FROM gone
