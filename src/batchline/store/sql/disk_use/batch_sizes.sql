-- batch_sizes: the bytes of the input, output and error files of batches, the largest batches first. An input that several
-- batches use counts for each of them. No locks; reads all batches.
SELECT
    b.id,
    f.filename,
    b.total,
    coalesce(f.bytes, 0)::bigint,
    (coalesce(o.bytes, 0) + coalesce(e.bytes, 0))::bigint,
    b.ended_at
FROM batchline.batches AS b
LEFT JOIN batchline.files AS f ON f.id = b.file_id AND f.deleted_at IS NULL
LEFT JOIN batchline.files AS o ON o.id = b.output_file_id AND o.deleted_at IS NULL
LEFT JOIN batchline.files AS e ON e.id = b.error_file_id AND e.deleted_at IS NULL
ORDER BY coalesce(f.bytes, 0) + coalesce(o.bytes, 0) + coalesce(e.bytes, 0) DESC, b.id
LIMIT %(limit)s
