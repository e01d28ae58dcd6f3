-- repeat_task: make an unfinished maintenance task due again at once, after other work had its chance.
UPDATE batchline.maintenance_tasks SET due_at = now() WHERE name = %(name)s
