-- duplicates_among: as duplicates, for `suspects` only, so that one pass over the file's lines is enough.
--
-- `IS TRUE` keeps the planner from making a join of it, which would hash a million lines to look up a
-- thousand suspects; this way it hashes the suspects and streams the lines. No locks.
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
