-- keep_input: lock the input file of a batch that is about to run again, so that it cannot be deleted meanwhile. Returns no row
-- if it was deleted or has expired: its lines may be gone. `adopted`: a rollback of the adoption needs the batch's results.
-- `results_deleted`: its output and error files are all deleted or have expired, so its results are about to be
-- (purge_batches_of).
--
-- Locks: the file's row, as create_batch does.
SELECT
    EXISTS (SELECT FROM batchline.adopted_batches AS a WHERE a.batch_id = %(batch)s) AS adopted,
    (
        SELECT bool_and(made.deleted_at IS NOT NULL OR coalesce(made.expires_at <= now(), false))
        FROM batchline.batches AS b
        JOIN batchline.files AS made ON made.id IN (b.output_file_id, b.error_file_id)
        WHERE b.id = %(batch)s
    ) IS TRUE AS results_deleted
FROM batchline.files AS f
WHERE f.id = %(file)s AND f.deleted_at IS NULL AND (f.expires_at IS NULL OR f.expires_at > now())
FOR KEY SHARE
