-- pause_reason: why a batch is paused, if that is because of its failures. No locks.
SELECT p.rule, p.threshold
FROM batchline.failure_pauses AS p
JOIN batchline.batches AS b ON b.id = p.batch_id
WHERE p.batch_id = %(batch)s AND p.rule IS NOT NULL AND b.paused_at IS NOT NULL
