-- drop_file_lines: delete a chunk of the lines of one deleted file, or of one whose row is gone. A chunk is small,
-- so that other statements never wait long for it.
--
-- The hashes of the lines go with the first chunk, the keys of items with their lines. The file's `file_lanes` rows record what is left to delete, and are deleted last. Returns the number of deleted rows.
-- Locks: one `file_lanes` row, skipping those that another worker has.
--
-- Lines are found in the order of the key and deleted by ctid. The ctid cannot change: lines are never updated, and no
-- other statement deletes them under that lock. A join by key reads the whole file for each chunk if the planner
-- believes that the file is most of the table.
WITH
part AS (
    SELECT p.file_no, p.lane_no
    FROM batchline.file_lanes AS p
    WHERE p.file_no = %(no)s
    ORDER BY p.lane_no
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
    RETURNING custom_id
),
freed AS (
    DELETE FROM batchline.item_keys AS k
    WHERE k.file_no = %(no)s AND k.key = ANY (ARRAY(SELECT custom_id FROM dropped))
),
unhashed AS (
    DELETE FROM batchline.line_hashes AS h
    USING part
    WHERE h.file_no = part.file_no AND h.lane_no = part.lane_no
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
