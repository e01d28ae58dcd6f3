-- keep_input: lock the input file of a batch that is about to run again, so that it cannot be deleted meanwhile. Returns no row
-- if it was deleted or has expired: its lines may be gone. `adopted`: a rollback of the adoption needs the batch's results.
--
-- Locks: the file's row, as create_batch does.
SELECT EXISTS (SELECT FROM batchline.adopted_batches AS a WHERE a.batch_id = %(batch)s) AS adopted
FROM batchline.files AS f
WHERE f.id = %(file)s AND f.deleted_at IS NULL AND (f.expires_at IS NULL OR f.expires_at > now())
FOR KEY SHARE
