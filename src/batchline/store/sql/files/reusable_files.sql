-- reusable_files: the files that a new batch needs for reuse: its own, and those of the earlier batches whose answers it may
-- take (reuse_sources). Returns no row if there is no such batch. Locks: none.
WITH
own AS (
    SELECT f.no FROM batchline.files AS f WHERE f.id = %(file)s AND f.tenant = %(tenant)s AND f.deleted_at IS NULL
),
source AS MATERIALIZED (
    SELECT DISTINCT s.file_no AS no
    FROM own
    CROSS JOIN LATERAL batchline.reuse_sources_v1(%(tenant)s, own.no, %(upstream)s, NULL) AS s
)
SELECT
    f.no,
    f.line_count,
    EXISTS (SELECT FROM batchline.line_hashes AS h WHERE h.file_no = f.no) AS hashed
FROM (SELECT no FROM source UNION SELECT own.no FROM own WHERE EXISTS (SELECT FROM source)) AS needed
CROSS JOIN LATERAL (SELECT * FROM batchline.files WHERE files.no = needed.no LIMIT 1) AS f
ORDER BY f.no
