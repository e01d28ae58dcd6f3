-- ping: does the database answer, and is the schema there?
SELECT count(*) FROM (SELECT FROM batches LIMIT 1) AS any_batch
