-- reusable_files: the files that a new batch needs for reuse: its own, and those of the earlier batches whose answers it may
-- take (reuse_sources), newest first. Returns no row if there is no such batch. Locks: none.
WITH
own AS (
    SELECT f.no FROM batchline.files AS f WHERE f.id = %(file)s AND f.tenant = %(tenant)s AND f.deleted_at IS NULL
),
source AS MATERIALIZED (
    SELECT s.file_no AS no, min(s.nth) AS nth
    FROM own
    CROSS JOIN LATERAL batchline.reuse_sources_v1(%(tenant)s, own.no, %(settings)s, NULL) AS s
    GROUP BY s.file_no
)
SELECT
    f.no,
    f.line_count,
    EXISTS (SELECT FROM batchline.line_hashes AS h WHERE h.file_no = f.no) AS hashed
FROM (
    SELECT every.no, min(every.nth) AS nth
    FROM (SELECT no, nth FROM source UNION ALL SELECT own.no, 0 FROM own WHERE EXISTS (SELECT FROM source)) AS every
    GROUP BY every.no
) AS needed
CROSS JOIN LATERAL (SELECT * FROM batchline.files WHERE files.no = needed.no LIMIT 1) AS f
ORDER BY needed.nth
