-- unfit_lines: the first lines of a file that a batch cannot run: another url than its endpoint, or a model that is
-- not among the `served` (NULL: all are, but no URL: as a routing key it would name an upstream, with slots of its
-- own). When all is well it reads the file's lanes and no line.
--
-- Lanes are numbered by their first lines, so the first `max_errors` lanes hold the first `max_errors` lines. Locks: none.
WITH
lane AS (
    SELECT file_no, lane_no, model, url
    FROM batchline.file_lanes
    WHERE file_no = %(file_no)s
      AND (
          url <> %(endpoint)s
          OR model <> ALL (%(served)s::text[])
          OR (%(served)s::text[] IS NULL AND model LIKE ANY (ARRAY ['http://%%', 'https://%%']))
      )
    ORDER BY lane_no
    LIMIT %(max_errors)s
)
SELECT line.line_no, lane.url, lane.model
FROM lane
CROSS JOIN LATERAL (
    SELECT l.line_no
    FROM batchline.lines AS l
    WHERE l.file_no = lane.file_no AND l.lane_no = lane.lane_no
    ORDER BY l.ordinal
    LIMIT %(max_errors)s
) AS line
ORDER BY line.line_no
LIMIT %(max_errors)s
