-- forget_workers: remove workers whose lease is over and that hold nothing any more, and stand-bys that are over.
--
-- Locks: no stand-by is waited for that somebody is using.
WITH
lapsed AS (
    DELETE FROM standbys
    WHERE id = ANY (ARRAY (SELECT id FROM standbys WHERE until < now() FOR UPDATE SKIP LOCKED))
)
DELETE FROM workers AS w
WHERE w.lease_until < now()
  AND NOT EXISTS (SELECT FROM spans AS s WHERE s.worker_id = w.id)
  AND NOT EXISTS (SELECT FROM batches AS b WHERE b.finalizer = w.id AND b.ended_at IS NULL)
