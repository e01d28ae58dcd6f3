-- drop_old_events: delete one chunk of events that were passed on to all their receivers longer ago than `seconds`. Returns
-- their number. Their deliveries have copies of what they need.
--
-- Locks: these rows, skipping locked ones. Read in the order of outbox_delivered, so a chunk costs what it deletes.
WITH gone AS (
    DELETE FROM batchline.outbox
    WHERE id = ANY (ARRAY(
        SELECT id
        FROM batchline.outbox
        WHERE delivered_at < now() - make_interval(secs => %(seconds)s)
        ORDER BY delivered_at
        LIMIT %(chunk)s
        FOR UPDATE SKIP LOCKED
    ))
    RETURNING 1
)
SELECT count(*) FROM gone
