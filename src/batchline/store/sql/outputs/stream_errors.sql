-- stream_errors: a template: as stream_results for failed lines, and an error line, composed here, for each line that never
-- ran. For batches that were cancelled or have expired.
--
-- `cursors` has, for each lane, the ordinal of its first line after `after`. The order of ordinals is that of line numbers,
-- so a lane has at most `until - after` lines in the range, from its cursor on. Locks: none.
COPY (
    SELECT line
    FROM (
        SELECT line_no, output AS line
        FROM batchline.results
        WHERE lane_id = ANY ({lanes})
          AND line_no > {after}
          AND line_no <= {until}
          AND outcome = 'failed'
        UNION ALL
        SELECT l.line_no, {before} || l.line_no || '","custom_id":' || to_json(l.custom_id)::text || {behind}
        FROM unnest({lanes}, {lane_nos}, {cursors}) AS lane (id, lane_no, cursor)
        CROSS JOIN LATERAL (
            SELECT line_no, custom_id
            FROM batchline.lines
            WHERE file_no = {file}
              AND lane_no = lane.lane_no
              AND ordinal >= lane.cursor
              AND ordinal < lane.cursor + ({until} - {after})
              AND line_no <= {until}
            OFFSET 0
        ) AS l
        LEFT JOIN LATERAL (
            SELECT true AS found FROM batchline.results AS r WHERE r.lane_id = lane.id AND r.line_no = l.line_no LIMIT 1
        ) AS result ON true
        WHERE result.found IS NULL
    ) AS ended
    ORDER BY line_no
) TO STDOUT (FORMAT csv, QUOTE E'\x01', DELIMITER E'\x02', ENCODING 'UTF8')
