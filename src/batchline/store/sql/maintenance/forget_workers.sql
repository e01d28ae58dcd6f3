-- forget_workers: remove workers whose lease is over and that hold nothing any more.
DELETE FROM batchline.workers AS w
WHERE w.lease_until < now()
  AND NOT EXISTS (SELECT FROM batchline.spans AS s WHERE s.worker_id = w.id)
  AND NOT EXISTS (SELECT FROM batchline.batches AS b WHERE b.finalizer = w.id AND b.ended_at IS NULL)
