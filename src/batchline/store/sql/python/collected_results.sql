-- collected_results: output lines of completed items of one stage after a line number, in order, until `room` bytes are full; the
-- line that reaches `room` is the last one. `numbers`: only of these lines; NULL: of all.
--
-- One range of the primary key, or one probe for each number. Locks: none.
SELECT line_no, output
FROM (
    SELECT line_no, output, sum(octet_length(output)) OVER (ORDER BY line_no) - octet_length(output) AS before
    FROM (
        (
            SELECT r.line_no, r.output
            FROM batchline.lanes AS n
            JOIN batchline.results AS r ON r.lane_id = n.id AND r.outcome = 'completed'
            WHERE n.batch_id = %(batch)s AND n.url = %(url)s AND r.line_no > %(after)s AND %(numbers)s::integer[] IS NULL
            ORDER BY r.line_no
            LIMIT %(limit)s
        )
        UNION ALL
        (
            SELECT r.line_no, r.output
            FROM batchline.lanes AS n
            CROSS JOIN unnest(%(numbers)s::integer[]) AS wanted (line_no)
            JOIN batchline.results AS r ON r.lane_id = n.id AND r.line_no = wanted.line_no AND r.outcome = 'completed'
            WHERE n.batch_id = %(batch)s AND n.url = %(url)s AND r.line_no > %(after)s
            ORDER BY r.line_no
            LIMIT %(limit)s
        )
    ) AS found
) AS page
WHERE before < %(room)s
ORDER BY line_no
