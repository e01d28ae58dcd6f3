-- find_planned_output: the batch whose output file will have this id, until that file exists. Uses a unique index.
SELECT b.*, u.claimed, u.retrying, u.returned
FROM batchline.current_batches AS b
CROSS JOIN LATERAL batchline.unfinished_v2(b.id, b.finalizing_at IS NOT NULL) AS u
WHERE b.planned_output_id = %(file)s AND b.tenant = %(tenant)s AND b.ended_at IS NULL
