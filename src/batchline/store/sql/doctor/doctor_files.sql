-- doctor_files: check that an input file has the recorded number of lines, in total and in each lane, with ordinals
-- without gaps and unique line numbers. The line number identifies the item (the key of its result, its
-- Idempotency-Key).
--
-- One pass over `lines` in the order of its key.
WITH
-- Batches that add lines to their file while they run. It gets their number when the batch ends; until then, the batch knows it.
growing AS (
    SELECT b.id AS batch_id, b.file_id, b.total
    FROM batchline.current_batches AS b
    WHERE b.ended_at IS NULL AND EXISTS (SELECT FROM batchline.lanes AS n WHERE n.batch_id = b.id AND n.fed)
),
file AS (
    SELECT f.id, f.no, coalesce(growing.total, f.line_count) AS line_count, growing.batch_id
    FROM batchline.files AS f
    LEFT JOIN growing ON growing.file_id = f.id
    WHERE f.purpose IN ('batch', 'operation')
      -- The lines of a deleted file are deleted only after its last batch has ended.
      AND (
          f.deleted_at IS NULL
          OR EXISTS (SELECT FROM batchline.batches AS b WHERE b.file_id = f.id AND b.ended_at IS NULL)
      )
      AND (
          %(batch)s::uuid IS NULL
          OR f.id = (SELECT b.file_id FROM batchline.batches AS b WHERE b.id = %(batch)s::uuid)
      )
),
-- lane_no is NULL in the row of the whole file.
counted AS MATERIALIZED (
    SELECT
        l.file_no,
        l.lane_no,
        count(*) AS lines,
        min(l.ordinal) AS first,
        max(l.ordinal) AS last,
        count(DISTINCT l.line_no) AS numbers
    FROM batchline.lines AS l
    JOIN file AS f ON f.no = l.file_no
    GROUP BY l.file_no, ROLLUP (l.lane_no)
),
finding AS (
    SELECT
        'file_lines' AS name,
        f.id AS file_id,
        format('line_count is %%s, but there are %%s lines', f.line_count, coalesce(c.lines, 0)) AS message
    FROM file AS f
    LEFT JOIN counted AS c ON c.file_no = f.no AND c.lane_no IS NULL
    WHERE f.line_count <> coalesce(c.lines, 0)
    UNION ALL
    SELECT 'file_numbers', f.id, format('%%s lines share %%s line numbers', c.lines, c.numbers)
    FROM file AS f
    JOIN counted AS c ON c.file_no = f.no AND c.lane_no IS NULL
    WHERE c.lines <> c.numbers
    UNION ALL
    SELECT
        'file_lanes',
        f.id,
        format(
            'lane %%s should have %%s lines, but has %%s, with ordinals from %%s to %%s',
            coalesce(part.lane_no, c.lane_no),
            coalesce(part.total, 0),
            coalesce(c.lines, 0),
            coalesce(c.first, 0),
            coalesce(c.last, -1)
        )
    FROM (
        SELECT p.file_no, p.lane_no, coalesce(n.total, p.total) AS total
        FROM batchline.file_lanes AS p
        JOIN file ON file.no = p.file_no
        LEFT JOIN batchline.current_lanes AS n ON n.batch_id = file.batch_id AND n.lane_no = p.lane_no
    ) AS part
    FULL JOIN (SELECT * FROM counted WHERE lane_no IS NOT NULL) AS c
        ON c.file_no = part.file_no AND c.lane_no = part.lane_no
    JOIN file AS f ON f.no = coalesce(part.file_no, c.file_no)
    WHERE (part.total, 0, part.total - 1)
        IS DISTINCT FROM (coalesce(c.lines, 0), coalesce(c.first, 0), coalesce(c.last, -1))
)
SELECT name, file_id, NULL::uuid AS batch_id, NULL::bigint AS lane_id, message
FROM finding
ORDER BY name, file_id, message
LIMIT %(max_findings)s
