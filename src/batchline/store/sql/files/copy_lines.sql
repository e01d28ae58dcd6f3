-- copy_lines: write the lines of a new file, as a stream of rows in PostgreSQL's binary format.
--
-- Runs in the transaction that ends with add_file, so lines never become visible without their file.
COPY batchline.lines (file_no, lane_no, ordinal, line_no, custom_id, body)
FROM STDIN (FORMAT BINARY)
