-- stream_lines: a template: send lines to the client as JSON Lines, byte for byte.
--
-- The text format would double every backslash. CSV leaves a value as it is unless it holds the quote, the
-- delimiter or a line break, and with control characters for both, none of these occurs in a line of JSON.
COPY (
    SELECT line
    FROM {lines} AS lines
    ORDER BY line_no
) TO STDOUT (FORMAT csv, QUOTE E'\x01', DELIMITER E'\x02', ENCODING 'UTF8')
