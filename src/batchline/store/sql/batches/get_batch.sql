-- get_batch: a batch and how many of its items are in which state. No locks.
SELECT b.*, u.claimed, u.retrying, u.returned
FROM batchline.current_batches AS b
CROSS JOIN LATERAL batchline.unfinished_v2(b.id, b.finalizing_at IS NOT NULL) AS u
WHERE b.id = %(batch)s
