-- get_operation: a governed batch of a tenant, by primary key. Locks: none, so reading a status never waits.
SELECT * FROM batchline.governed_batches WHERE id = %(batch)s AND tenant = %(tenant)s
