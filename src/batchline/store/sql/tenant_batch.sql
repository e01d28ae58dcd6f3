-- tenant_batch: as get_batch, and of nobody else's.
SELECT * FROM batches WHERE id = %(batch)s AND tenant = %(tenant)s
