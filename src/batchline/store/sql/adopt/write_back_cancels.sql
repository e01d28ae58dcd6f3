-- write_back_cancels: a template: old batches that were cancelled after the cutover are cancelled there, too. Locks: these
-- rows.
UPDATE {batches} AS old
SET cancelling_at = made.cancelling_at
FROM batchline.adopted_batches AS b
JOIN batchline.batches AS made ON made.id = b.batch_id
WHERE old.id = b.batch_id AND b.reason IS NULL AND made.cancelling_at IS NOT NULL AND old.cancelling_at IS NULL
