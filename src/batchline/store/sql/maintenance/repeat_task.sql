-- repeat_task: make an unfinished maintenance task due again after `seconds`: at once, after other work had its chance, or
-- later, if it waits for something.
UPDATE batchline.maintenance_tasks
SET due_at = now() + make_interval(secs => %(seconds)s)
WHERE name = %(name)s
