-- find_batch: the batch that an earlier run of the same command made.
SELECT * FROM batchline.batches WHERE tenant = %(tenant)s AND resume_key = %(resume_key)s
