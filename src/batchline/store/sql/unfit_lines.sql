-- unfit_lines: the first lines of a file that a batch cannot run: another url than its endpoint, or a model that is
-- not among the `served` (NULL: all are). When all is well it reads the file's lanes and no line.
--
-- Lanes are numbered by their first lines, so the first `most` lanes hold the first `most` lines. Locks: none.
WITH
lane AS (
    SELECT file_no, lane_no, model, url
    FROM file_lanes
    WHERE file_no = %(file_no)s
      AND (url <> %(endpoint)s OR (%(served)s::text[] IS NOT NULL AND model <> ALL (%(served)s::text[])))
    ORDER BY lane_no
    LIMIT %(most)s
)
SELECT line.line_no, lane.url, lane.model
FROM lane
CROSS JOIN LATERAL (
    SELECT l.line_no
    FROM lines AS l
    WHERE l.file_no = lane.file_no AND l.lane_no = lane.lane_no
    ORDER BY l.ordinal
    LIMIT %(most)s
) AS line
ORDER BY line.line_no
LIMIT %(most)s
