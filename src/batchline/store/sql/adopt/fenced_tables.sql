-- fenced_tables: the old tables that have the trigger of the fence, which may be disabled. Locks: none.
SELECT n.nspname::text, c.relname::text
FROM pg_trigger AS t
JOIN pg_class AS c ON c.oid = t.tgrelid
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE t.tgfoid = 'batchline.adopted_fence_v1'::regproc
ORDER BY c.relname
