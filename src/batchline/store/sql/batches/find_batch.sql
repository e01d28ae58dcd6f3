-- find_batch: the batch that an earlier run of the same command made.
SELECT b.*, u.claimed, u.retrying, u.returned
FROM batchline.current_batches AS b
CROSS JOIN LATERAL batchline.unfinished_v2(b.id, b.finalizing_at IS NOT NULL) AS u
WHERE b.tenant = %(tenant)s AND b.resume_key = %(resume_key)s
