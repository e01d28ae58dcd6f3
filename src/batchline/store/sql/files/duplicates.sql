-- duplicates: the first `limit` lines of a file whose custom_id also occurs in an earlier line.
--
-- Sorts all custom_ids of the file, on disk if necessary. Used only for files with so many lines that the sieve
-- (files/ingest.py) could not narrow them down; duplicates_among does the same for a few suspects. Locks: none.
SELECT line_no, custom_id, first_line_no
FROM (
    SELECT l.line_no, l.custom_id, min(l.line_no) OVER (PARTITION BY l.custom_id) AS first_line_no
    FROM batchline.lines AS l
    WHERE l.file_no = %(file)s
) AS line
WHERE line_no > first_line_no
ORDER BY line_no
LIMIT %(limit)s
