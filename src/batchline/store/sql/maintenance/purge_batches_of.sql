-- purge_batches_of: start to purge the batches whose output and error files are all deleted. `files` are deleted files.
-- A deleted input does not count: results outlive it. Adopted batches are kept until the adoption is finished: a rollback
-- needs their results.
--
-- Locks: the batches' rows, skipping locked ones.
WITH
made AS (
    SELECT b.id
    FROM unnest(%(files)s::uuid[]) AS d (file_id)
    JOIN batchline.batches AS b ON b.output_file_id = d.file_id
    UNION
    SELECT b.id
    FROM unnest(%(files)s::uuid[]) AS d (file_id)
    JOIN batchline.batches AS b ON b.error_file_id = d.file_id
),
over AS (
    SELECT b.id
    FROM batchline.batches AS b
    WHERE b.id = ANY (ARRAY(SELECT id FROM made))
      AND b.ended_at IS NOT NULL
      AND b.purging_at IS NULL
      AND NOT EXISTS (SELECT FROM batchline.adopted_batches AS a WHERE a.batch_id = b.id)
      AND NOT EXISTS (
          SELECT FROM batchline.files AS f WHERE f.id IN (b.output_file_id, b.error_file_id) AND f.deleted_at IS NULL
      )
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE batchline.batches AS b
SET purging_at = now()
FROM over
WHERE b.id = over.id
