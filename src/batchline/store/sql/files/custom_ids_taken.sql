-- custom_ids_taken: those of the given custom_ids that children of the batch already have. Runs under lock_operation.
SELECT l.custom_id
FROM batchline.batches AS b
JOIN batchline.lanes AS n ON n.batch_id = b.id
JOIN batchline.lines AS l ON l.file_no = n.file_no AND l.lane_no = n.lane_no
WHERE b.id = %(batch)s AND l.custom_id = ANY (%(custom_ids)s::text[])
ORDER BY l.line_no
