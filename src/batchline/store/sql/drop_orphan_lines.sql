-- drop_orphan_lines: a chunk of the lines of deleted files, off everybody's path (LESSONS 16).
--
-- A file is deleted by deleting its `files` row; its `file_lanes` rows say what is left to clear away, and
-- go last. Returns how many rows went; the caller goes on until it is none.
WITH
part AS (
    SELECT p.file_no, p.lane_no
    FROM file_lanes AS p
    WHERE NOT EXISTS (SELECT FROM files AS f WHERE f.no = p.file_no)
    LIMIT 1
    FOR UPDATE SKIP LOCKED
),
chunk AS (
    SELECT l.file_no, l.lane_no, l.ordinal
    FROM part
    JOIN lines AS l USING (file_no, lane_no)
    LIMIT %(chunk)s
),
dropped AS (
    DELETE FROM lines AS l
    USING chunk AS c
    WHERE l.file_no = c.file_no AND l.lane_no = c.lane_no AND l.ordinal = c.ordinal
    RETURNING 1
),
emptied AS (
    DELETE FROM file_lanes AS p
    USING part
    WHERE p.file_no = part.file_no
      AND p.lane_no = part.lane_no
      AND (SELECT count(*) FROM chunk) < %(chunk)s
    RETURNING 1
)
SELECT ((SELECT count(*) FROM dropped) + (SELECT count(*) FROM emptied))::integer AS gone
