-- ping: does the database answer, is the schema there, and is this connection read-only?
SELECT current_setting('transaction_read_only')::boolean, (SELECT count(*) FROM (SELECT FROM batchline.batches LIMIT 1) AS any_batch)
