-- drop_file_lines: delete a chunk of the lines of one deleted file. A chunk is small, so that
-- other statements never wait long for it.
--
-- Its `file_lanes` rows say what is left to clear away, and go last. Returns how many rows went. Locks: one
-- `file_lanes` row, skipping what another one clears away.
--
-- Found in the order of the key and deleted by their place on disk, which nothing changes: lines are never updated, and
-- nobody else deletes under that lock. A join by key reads the whole file for each chunk, where the planner takes it for
-- most of the table.
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
