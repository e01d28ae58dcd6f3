-- get_operation: a governed batch as its tenant sees it, by primary key. Locks: none, so a status never waits.
SELECT * FROM batchline.governed_batches WHERE id = %(batch)s AND tenant = %(tenant)s
