-- change_settings: how the lines of a batch are run from the next claim on. The trace of its submission stays.
UPDATE batchline.batches
SET settings = %(settings)s || jsonb_strip_nulls(jsonb_build_object('traceparent', settings -> 'traceparent'))
WHERE id = %(batch)s AND ended_at IS NULL
