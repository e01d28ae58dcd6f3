-- due_steps: batches whose next step should begin: the worker that ended the last one died, or a pause between steps is over.
-- By the index batches_next_step, which has only these and those that come due later. No locks.
SELECT b.id
FROM batchline.batches AS b
WHERE b.next_step_at <= now()
  AND b.finalizing_at IS NULL AND b.paused_at IS NULL AND b.held_at IS NULL
  AND b.cancelling_at IS NULL AND b.expiring_at IS NULL
ORDER BY b.next_step_at
LIMIT %(limit)s
