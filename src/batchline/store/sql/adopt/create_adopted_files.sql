-- create_adopted_files: the files of an adoption come to be, in the transaction of the cutover. A file that stayed after a
-- rollback, because a batch of Batchline's own uses it, is there already. Locks: only its own rows.
WITH
file AS (
    INSERT INTO batchline.files (
        id, no, tenant, purpose, filename, bytes, line_count, created_at, expires_at, deleted_at
    )
    OVERRIDING SYSTEM VALUE
    SELECT
        f.file_id,
        f.file_no,
        CASE WHEN %(by_owner)s::boolean THEN coalesce(nullif(old.owner, ''), %(tenant)s::text) ELSE %(tenant)s::text END,
        'batch',
        old.name,
        old.size,
        f.line_count,
        old.created_at,
        old.expires_at,
        old.deleted_at
    FROM batchline.adopted_files AS f
    JOIN batchline.source_files AS old ON old.id = f.file_id
    WHERE f.line_count > 0
    ON CONFLICT DO NOTHING
    RETURNING no
)
INSERT INTO batchline.file_lanes (file_no, lane_no, model, url, total)
SELECT part.file_no, part.lane_no, part.model, part.url, part.total
FROM file
JOIN batchline.adopted_file_lanes AS part ON part.file_no = file.no
