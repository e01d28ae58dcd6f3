-- batch_sizes: the bytes of the input, output and error files of batches, also those of earlier ends, the largest batches
-- first. An input that several batches use counts for each of them. No locks; reads all batches.
SELECT
    b.id,
    f.filename,
    b.total,
    coalesce(f.bytes, 0)::bigint,
    made.bytes::bigint,
    b.ended_at
FROM batchline.batches AS b
LEFT JOIN batchline.files AS f ON f.id = b.file_id AND f.deleted_at IS NULL
CROSS JOIN LATERAL (
    SELECT coalesce(sum(each.bytes), 0) AS bytes
    FROM batchline.files AS each
    WHERE each.id = ANY (b.earlier_files || ARRAY[b.output_file_id, b.error_file_id]) AND each.deleted_at IS NULL
) AS made
ORDER BY coalesce(f.bytes, 0) + made.bytes DESC, b.id
LIMIT %(limit)s
