-- tenant_batch: like get_batch, for one tenant; excludes governed batches, which only their users see.
SELECT b.*, u.claimed, u.retrying, u.returned
FROM batchline.current_batches AS b
CROSS JOIN LATERAL batchline.unfinished_v2(b.id, b.finalizing_at IS NOT NULL) AS u
WHERE b.id = %(batch)s AND b.tenant = %(tenant)s AND b.submitted_by IS NULL
