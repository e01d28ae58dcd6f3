-- leave: a worker that has released everything takes its name off the list.
DELETE FROM workers
WHERE id = %(worker)s AND NOT EXISTS (SELECT FROM spans WHERE spans.worker_id = workers.id)
