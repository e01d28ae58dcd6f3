-- get_batch: the status of a batch is one read by primary key, and it waits for nobody.
SELECT * FROM batchline.batches WHERE id = %(batch)s
