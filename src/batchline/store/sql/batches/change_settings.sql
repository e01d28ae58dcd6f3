-- change_settings: how the lines of a batch are run from the next claim on.
UPDATE batchline.batches SET settings = %(settings)s WHERE id = %(batch)s AND ended_at IS NULL
