-- copy_lines: the lines of a new file, as a stream of rows in PostgreSQL's binary format.
--
-- Runs in the transaction that ends with add_file, so nobody sees lines of a file that is not there.
COPY batchline.lines (file_no, lane_no, ordinal, line_no, custom_id, body)
FROM STDIN (FORMAT BINARY)
