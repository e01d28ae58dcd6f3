-- tenant_batch: as get_batch, of nobody else's, and no governed one: these are their users' alone.
SELECT * FROM batchline.batches WHERE id = %(batch)s AND tenant = %(tenant)s AND submitted_by IS NULL
