-- call_lines: the custom_ids of one lane from an ordinal on, in order, to find what was requested before.
--
-- One range of the primary key. Locks: none.
SELECT ordinal, custom_id
FROM batchline.lines
WHERE file_no = %(file_no)s AND lane_no = %(lane_no)s AND ordinal >= %(first)s
ORDER BY ordinal
LIMIT %(limit)s
