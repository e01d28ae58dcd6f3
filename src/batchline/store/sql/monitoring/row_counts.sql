-- row_counts: live and dead rows of the hot tables, as PostgreSQL's statistics estimate them. Reads no table. Locks: none.
SELECT
    t.name,
    pg_stat_get_live_tuples(t.id)::bigint AS live,
    pg_stat_get_dead_tuples(t.id)::bigint AS dead
FROM (
    VALUES
        ('batches', 'batchline.batches'::regclass::oid),
        ('counters', 'batchline.counters'::regclass::oid),
        ('cursors', 'batchline.cursors'::regclass::oid),
        ('lanes', 'batchline.lanes'::regclass::oid),
        ('results', 'batchline.results'::regclass::oid),
        ('spans', 'batchline.spans'::regclass::oid),
        ('workers', 'batchline.workers'::regclass::oid)
) AS t (name, id)
