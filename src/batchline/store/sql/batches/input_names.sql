-- input_names: the names of the input files of batches, and whether a live worker holds items of each batch. No locks.
SELECT
    b.id,
    f.filename,
    EXISTS (
        SELECT
        FROM batchline.spans AS s
        JOIN batchline.workers AS w ON w.id = s.worker_id
        WHERE s.batch_id = b.id AND w.lease_until >= now()
    ) AS held
FROM batchline.batches AS b
LEFT JOIN batchline.files AS f ON f.id = b.file_id
WHERE b.id = ANY (%(batches)s::uuid[])
