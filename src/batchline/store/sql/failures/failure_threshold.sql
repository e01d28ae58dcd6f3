-- failure_threshold: the limit that a batch has reached which is paused because of its failures. No locks.
SELECT p.threshold FROM batchline.failure_pauses AS p WHERE p.batch_id = %(batch)s
