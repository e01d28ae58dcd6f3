-- add_lines: write a few lines of a new file into its first lane, in the transaction that has added the file.
--
-- Many lines are copied before (copy_lines). Locks: only its own rows.
INSERT INTO batchline.lines (file_no, lane_no, ordinal, line_no, custom_id, body)
SELECT file.no, 0, line.nth - 1, line.nth, line.custom_id, line.body
FROM (SELECT no FROM batchline.files WHERE id = %(file)s LIMIT 1) AS file
CROSS JOIN unnest(%(custom_ids)b::text[], %(bodies)b::text[]) WITH ORDINALITY AS line (custom_id, body, nth)
