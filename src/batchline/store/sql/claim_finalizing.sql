-- claim_finalizing: finalizing is work like any other: one worker takes a batch, and holds it as long as
-- its lease is renewed. Returns no row when there is none to take.
--
-- Locks: the batch row, skipping rows that are locked.
WITH
batch AS (
    SELECT b.id
    FROM batches AS b
    WHERE b.finalizing_at IS NOT NULL
      AND b.ended_at IS NULL
      AND (%(batch)s::uuid IS NULL OR b.id = %(batch)s::uuid)
      AND (
          b.finalizer IS NULL
          -- Its own from before, which it could not yield: a worker finalizes one batch at a time.
          OR b.finalizer = %(worker)s
          OR NOT EXISTS (SELECT FROM workers AS w WHERE w.id = b.finalizer AND w.lease_until >= now())
      )
    ORDER BY b.finalizing_at
    LIMIT 1
    FOR NO KEY UPDATE SKIP LOCKED
),
renewed AS (
    INSERT INTO workers (id, name, lease_until)
    SELECT %(worker)s, %(name)s, now() + %(lease)s
    WHERE EXISTS (SELECT FROM batch)
    ON CONFLICT (id) DO UPDATE SET lease_until = excluded.lease_until
)
UPDATE batches AS b
SET finalizer = %(worker)s
FROM batch
WHERE b.id = batch.id
RETURNING b.*
