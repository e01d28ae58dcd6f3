-- stream_lines: template that sends lines to the client as JSON Lines, byte for byte.
--
-- The text format would double every backslash. CSV does not change a value unless it contains the quote, the delimiter
-- or a line break. Quote and delimiter are control characters, and none of the three occurs inside a JSON value.
COPY (
    SELECT line
    FROM {lines} AS lines
    ORDER BY line_no
) TO STDOUT (FORMAT csv, QUOTE E'\x01', DELIMITER E'\x02', ENCODING 'UTF8')
