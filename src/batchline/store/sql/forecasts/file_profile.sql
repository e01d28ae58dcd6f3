-- file_profile: lines of a file that stand for all of them, evenly spread: each has the model and url of its lane, how many
-- lines it stands for, and its body. About `lines` of them, and at least one of each lane. No locks; one probe per line.
SELECT p.model, p.url, (p.total::float8 / count(*) OVER (PARTITION BY p.lane_no)) AS weight, l.body
FROM batchline.files AS f
JOIN batchline.file_lanes AS p ON p.file_no = f.no
CROSS JOIN LATERAL generate_series(0, p.total - 1, greatest(1, f.line_count / %(lines)s::integer)) AS nth
CROSS JOIN LATERAL (
    SELECT * FROM batchline.lines
    WHERE lines.file_no = p.file_no AND lines.lane_no = p.lane_no AND lines.ordinal = nth
    LIMIT 1
) AS l
WHERE f.id = %(file)s
