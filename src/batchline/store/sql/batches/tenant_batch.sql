-- tenant_batch: as get_batch, of nobody else's, and no governed one: these are their users' alone.
SELECT b.*, u.in_progress, u.retrying, u.returned
FROM batchline.current_batches AS b
CROSS JOIN LATERAL batchline.unfinished_v1(b.id) AS u
WHERE b.id = %(batch)s AND b.tenant = %(tenant)s AND b.submitted_by IS NULL
