-- garbage_objects: of the objects found in the object store, those that nothing refers to.
--
-- An object is needed if a file or a part of an upload refers to it, or if its batch has not ended: a finalizer records
-- its files and ends the batch in one commit. So for outputs this is safe at any age, if the objects were listed before
-- this runs. `older_than` only spares the files of finalizers that lost their batch and still write. For uploaded files
-- and parts, `older_than` is longer than it can take to record them (files/intake.py). Locks: none.
SELECT o.key
FROM unnest(%(keys)s::text[], %(batches)s::uuid[], %(modified)s::timestamptz[]) AS o (key, batch_id, modified)
WHERE o.modified < now() - %(older_than)s::interval
  AND NOT EXISTS (SELECT FROM batchline.files AS f WHERE f.object_key = o.key AND f.purged_at IS NULL)
  AND NOT EXISTS (SELECT FROM batchline.upload_parts AS p WHERE p.object_key = o.key)
  AND NOT EXISTS (SELECT FROM batchline.batches AS b WHERE b.id = o.batch_id AND b.ended_at IS NULL)
