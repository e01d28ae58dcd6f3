-- drop_abandoned_tasks: these tasks are cancelled, or nothing more can be done. Locks: their rows.
DELETE FROM batchline.abandoned_tasks AS t
USING unnest(%(upstreams)s::text[], %(tasks)s::text[]) AS done (upstream, task_id)
WHERE t.upstream = done.upstream AND t.task_id = done.task_id
