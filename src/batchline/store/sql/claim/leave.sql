-- leave: a worker that has released everything takes its name off the list.
DELETE FROM batchline.workers
WHERE id = %(worker)s AND NOT EXISTS (SELECT FROM batchline.spans WHERE spans.worker_id = workers.id)
