-- table_sizes: the bytes of each table with its indexes, the largest first. No locks.
SELECT c.relname, pg_total_relation_size(c.oid)
FROM pg_class AS c
WHERE c.relnamespace = (SELECT n.oid FROM pg_namespace AS n WHERE n.nspname = 'batchline') AND c.relkind = 'r'
ORDER BY pg_total_relation_size(c.oid) DESC, c.relname
