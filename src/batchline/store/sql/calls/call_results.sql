-- call_results: those of these lines of one lane that have a result, until `room` bytes are full; the result that reaches `room`
-- is the last one.
--
-- One look into the primary key per line. The size of an output is known without reading its TOAST data. Locks: none.
SELECT line_no, output
FROM (
    SELECT
        found.line_no,
        found.output,
        sum(octet_length(found.output)) OVER (ORDER BY found.line_no) - octet_length(found.output) AS before
    FROM unnest(%(line_nos)s::integer[]) AS wanted (line_no)
    CROSS JOIN LATERAL (
        SELECT r.line_no, r.output
        FROM batchline.results AS r
        WHERE r.lane_id = %(lane)s AND r.line_no = wanted.line_no
        LIMIT 1
    ) AS found
) AS page
WHERE before < %(room)s
ORDER BY line_no
