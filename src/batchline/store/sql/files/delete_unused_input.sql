-- delete_unused_input: mark an input file as deleted if no batch uses it. Runs under lock_unused_input.
UPDATE batchline.files AS f
SET deleted_at = now()
WHERE f.id = %(file)s AND NOT EXISTS (SELECT FROM batchline.batches AS b WHERE b.file_id = f.id)
RETURNING f.id, f.no, f.object_key
