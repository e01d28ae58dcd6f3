-- garbage_objects: of objects that were found in the object store, those that nobody needs.
--
-- An object is needed if a file or a part of an upload is recorded for it, or if its batch has not ended: a finalizer
-- records its files and ends the batch in one commit. So for outputs this is safe at any age, as long as the objects
-- were listed before it is run; `older_than` only leaves the last uploads of those who lost that race to themselves.
-- For what comes in from outside, `older_than` is longer than anything may take to be recorded (files/intake.py).
-- Locks: none.
SELECT o.key
FROM unnest(%(keys)s::text[], %(batches)s::uuid[], %(modified)s::timestamptz[]) AS o (key, batch_id, modified)
WHERE o.modified < now() - %(older_than)s::interval
  AND NOT EXISTS (SELECT FROM batchline.files AS f WHERE f.object_key = o.key AND f.purged_at IS NULL)
  AND NOT EXISTS (SELECT FROM batchline.upload_parts AS p WHERE p.object_key = o.key)
  AND NOT EXISTS (SELECT FROM batchline.batches AS b WHERE b.id = o.batch_id AND b.ended_at IS NULL)
