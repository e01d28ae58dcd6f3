-- retire_batch: clear the resume key, so the next run creates a new batch.
UPDATE batchline.batches SET resume_key = NULL WHERE tenant = %(tenant)s AND resume_key = %(resume_key)s
