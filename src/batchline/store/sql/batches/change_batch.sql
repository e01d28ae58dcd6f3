-- change_batch: another priority, concurrency or deadline for a batch that has not ended, from the next claim on.
--
-- `priority`, `concurrency` (0: no limit), `deadline` and `seconds` (from now on): NULL leaves the value as it is. `no_deadline`
-- removes the deadline. Returns no row if the batch is past changing, or the deadline has passed already.
--
-- Locks: the batch row, then its lanes in id order, as close takes them. Claims hold lanes for a moment and wait for no batch.
WITH
batch AS (
    UPDATE batchline.batches
    SET priority = coalesce(%(priority)s::smallint, priority),
        concurrency = CASE
            WHEN %(concurrency)s::integer IS NULL THEN concurrency
            ELSE nullif(%(concurrency)s::integer, 0)
        END,
        expires_at = CASE
            WHEN %(no_deadline)s::boolean THEN NULL
            ELSE coalesce(%(deadline)s::timestamptz, now() + make_interval(secs => %(seconds)s::float8), expires_at)
        END
    WHERE id = %(batch)s
      AND finalizing_at IS NULL
      AND ended_at IS NULL
      AND cancelling_at IS NULL
      AND expiring_at IS NULL
      AND (%(deadline)s::timestamptz IS NULL OR %(deadline)s::timestamptz > now())
    RETURNING id, priority, concurrency, expires_at
),
lane AS (
    SELECT n.id, batch.priority, batch.concurrency, batch.expires_at
    FROM batchline.lanes AS n
    JOIN batch ON batch.id = n.batch_id
    ORDER BY n.id
    FOR NO KEY UPDATE OF n
),
changed AS (
    UPDATE batchline.lanes AS n
    SET priority = lane.priority,
        concurrency = lane.concurrency,
        -- As in create_batch.
        deadline = coalesce(lane.expires_at, '9999-12-31 00:00:00+00')
    FROM lane
    WHERE n.id = lane.id
)
SELECT id, pg_notify('batchline', 'changed ' || id) IS NULL AS notified FROM batch
