-- tenant_batch: as get_batch, of nobody else's, and no governed one: these are their users' alone.
SELECT b.*, u.claimed, u.retrying, u.returned
FROM batchline.current_batches AS b
CROSS JOIN LATERAL batchline.unfinished_v1(b.id, b.finalizing_at IS NOT NULL) AS u
WHERE b.id = %(batch)s AND b.tenant = %(tenant)s AND b.submitted_by IS NULL
