-- stream_results: a template: the lines of one outcome with numbers after `after` up to `until`, in input order, as JSON
-- Lines, byte for byte.
--
-- For each lane one range of the primary key. What is found in several lanes is sorted, which is little: a range is a few
-- megabytes. With one lane it comes in order, so the first row is sent at once.
-- The text format would double every backslash. CSV leaves a value as it is unless it holds the quote, the delimiter or
-- a line break, and with control characters for both, none of these occurs in a line of JSON. COPY takes no parameters.
-- Locks: none. The snapshot lasts as long as the range takes.
COPY (
    SELECT output
    FROM batchline.results
    WHERE lane_id = {any_lane}
      AND line_no > {after}
      AND line_no <= {until}
      AND outcome = {outcome}
    ORDER BY line_no
) TO STDOUT (FORMAT csv, QUOTE E'\x01', DELIMITER E'\x02', ENCODING 'UTF8')
