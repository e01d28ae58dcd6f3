-- begin_adoption: record that an adoption of the tables in `source` begins, or begins again after it was finished or
-- abandoned. Returns no row if another command has begun one. Locks: its row.
INSERT INTO batchline.adoption (source, shape, phase)
VALUES (%(source)s, %(shape)s, 'prepare')
ON CONFLICT (one_row) DO UPDATE
SET source = excluded.source,
    shape = excluded.shape,
    phase = 'prepare',
    next_page = 0,
    seen_xid = 0,
    pass_xid = 0,
    began_at = now(),
    prepared_at = NULL,
    cutover_at = NULL,
    finished_at = NULL
WHERE adoption.phase = 'finished'
RETURNING phase
