-- duplicates_among: like duplicates, but only for `suspects`, so that one pass over the file's lines is enough.
--
-- `IS TRUE` keeps the planner from using a join, which would hash a million lines to look up a thousand suspects. This
-- way it hashes the suspects and streams the lines. Locks: none.
SELECT line_no, custom_id, first_line_no
FROM (
    SELECT l.line_no, l.custom_id, min(l.line_no) OVER (PARTITION BY l.custom_id) AS first_line_no
    FROM batchline.lines AS l
    WHERE l.file_no = %(file)s
      AND (l.custom_id IN (SELECT unnest(%(suspects)b::text[]))) IS TRUE
) AS line
WHERE line_no > first_line_no
ORDER BY line_no
LIMIT %(limit)s
