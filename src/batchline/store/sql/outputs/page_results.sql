-- page_results: the completed lines of a batch with numbers after `after` up to `until`, in input order, until `room`
-- bytes are full; the line that reaches `room` is the last one. A line that is larger than `room` is returned as NULL.
--
-- Every line number belongs to one lane, so there are at most `until - after` lines, however many lanes there are: one
-- range of the primary key per lane. The size of a line is known without reading its TOAST data. Locks: none. Each page
-- has a separate snapshot, so nothing is held while a client reads slowly.
SELECT line_no, CASE WHEN size <= %(room)s THEN output END AS line
FROM (
    SELECT
        line_no,
        output,
        octet_length(output) AS size,
        sum(octet_length(output)) OVER (ORDER BY line_no) AS total
    FROM batchline.results
    WHERE lane_id = ANY (%(lanes)s::bigint[])
      AND line_no > %(after)s
      AND line_no <= %(until)s
      AND outcome = 'completed'
) AS finished
WHERE total - size < %(room)s
ORDER BY line_no
