-- page_requests: the requests of a file with line numbers after `after` up to `until`, in input order, until `room`
-- bytes are full; the line that reaches `room` is the last one. A body that is larger than `room` is returned as NULL.
--
-- `cursors` contains, for each of `lane_nos`, the ordinal of its first line after `after`. A lane whose first line lies
-- beyond the page costs one lookup in the primary key; the others have at most `until - after` lines in it. Locks:
-- none. Each page has a separate snapshot, so nothing is held while a client reads slowly.
SELECT
    line_no,
    CASE
        WHEN size <= %(room)s
        THEN '{"custom_id":' || to_json(custom_id)::text || ',"method":"POST","url":' || to_json(url)::text
            || ',"body":' || body || '}'
    END AS line,
    lane_no
FROM (
    SELECT
        l.line_no,
        l.custom_id,
        l.body,
        lane.url,
        lane.lane_no,
        octet_length(l.body) AS size,
        sum(octet_length(l.body)) OVER (ORDER BY l.line_no) AS total
    FROM unnest(%(lane_nos)s::integer[], %(cursors)s::integer[], %(urls)s::text[]) AS lane (lane_no, cursor, url)
    JOIN batchline.lines AS first
        ON first.file_no = %(file_no)s
        AND first.lane_no = lane.lane_no
        AND first.ordinal = lane.cursor
        AND first.line_no <= %(until)s
    JOIN batchline.lines AS l
        ON l.file_no = %(file_no)s
        AND l.lane_no = lane.lane_no
        AND l.ordinal >= lane.cursor
        AND l.ordinal < lane.cursor + (%(until)s::integer - %(after)s::integer)
        AND l.line_no <= %(until)s
) AS request
WHERE total - size < %(room)s
ORDER BY line_no
