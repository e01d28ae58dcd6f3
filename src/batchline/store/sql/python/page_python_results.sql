-- page_python_results: results of one lane after a line number, in the order of its items, until `room` bytes are full; the
-- result that reaches `room` is the last one.
--
-- One range of the primary key. The size of an output is known without reading its TOAST data. Locks: none. Each page has
-- a snapshot of its own, so nothing is held while the caller reads slowly.
SELECT ordinal, line_no, attempt, output
FROM (
    SELECT ordinal, line_no, attempt, output, sum(octet_length(output)) OVER (ORDER BY line_no) - octet_length(output) AS before
    FROM (
        SELECT ordinal, line_no, attempt, output
        FROM batchline.results
        WHERE lane_id = %(lane)s AND line_no > %(after)s
        ORDER BY line_no
        LIMIT %(limit)s
    ) AS next_results
) AS page
WHERE before < %(room)s
ORDER BY line_no
