-- retire_batch: a fresh start is wanted: the command's next run shall not find this batch any more.
UPDATE batchline.batches SET resume_key = NULL WHERE tenant = %(tenant)s AND resume_key = %(resume_key)s
