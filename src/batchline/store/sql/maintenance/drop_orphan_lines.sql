-- drop_orphan_lines: delete a chunk of the lines of files whose row is gone. A chunk is small, so that other statements
-- never wait long for it.
--
-- Their `file_lanes` rows record what is left to delete, and are deleted last. Returns the number of deleted rows; the
-- caller repeats until it is 0. Locks: one `file_lanes` row, skipping those that another worker has. Lines are found in
-- the order of the key and deleted by ctid, for the reasons given in drop_file_lines.
WITH
part AS (
    SELECT p.file_no, p.lane_no
    FROM batchline.file_lanes AS p
    WHERE NOT EXISTS (SELECT FROM batchline.files AS f WHERE f.no = p.file_no)
    LIMIT 1
    FOR UPDATE SKIP LOCKED
),
chunk AS (
    SELECT l.row_id
    FROM part
    CROSS JOIN LATERAL (
        SELECT lines.ctid AS row_id
        FROM batchline.lines
        WHERE lines.file_no = part.file_no AND lines.lane_no = part.lane_no
        ORDER BY lines.ordinal
        LIMIT %(chunk)s
    ) AS l
),
dropped AS (
    DELETE FROM batchline.lines
    WHERE ctid = ANY (ARRAY(SELECT row_id FROM chunk))
    RETURNING 1
),
emptied AS (
    DELETE FROM batchline.file_lanes AS p
    USING part
    WHERE p.file_no = part.file_no
      AND p.lane_no = part.lane_no
      AND (SELECT count(*) FROM chunk) < %(chunk)s
    RETURNING 1
)
SELECT ((SELECT count(*) FROM dropped) + (SELECT count(*) FROM emptied))::integer AS gone
