-- ping: check that the database answers and has the schema, and whether this connection is read-only.
SELECT current_setting('transaction_read_only')::boolean, (SELECT count(*) FROM (SELECT FROM batchline.batches LIMIT 1) AS any_batch)
