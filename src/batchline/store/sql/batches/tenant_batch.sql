-- tenant_batch: like get_batch, for one tenant; excludes governed batches, which only their users see.
SELECT * FROM batchline.current_batches WHERE id = %(batch)s AND tenant = %(tenant)s AND submitted_by IS NULL
