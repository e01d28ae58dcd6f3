-- erasure_left: how many batches and files of a tenant are left to erase, and how many of its tasks are to be cancelled at
-- providers before. Counts entries of indexes. Locks: none.
SELECT
    (SELECT count(*)::integer FROM batchline.batches AS b WHERE b.tenant = %(tenant)s) AS batches,
    (SELECT count(*)::integer FROM batchline.files AS f WHERE f.tenant = %(tenant)s) AS files,
    (
        SELECT count(*)::integer
        FROM batchline.abandoned_tasks AS a
        WHERE EXISTS (SELECT FROM batchline.batches AS b WHERE b.id = a.batch_id AND b.tenant = %(tenant)s)
           OR EXISTS (SELECT FROM batchline.deleted_batches AS d WHERE d.batch_id = a.batch_id AND d.tenant = %(tenant)s)
    ) AS tasks
