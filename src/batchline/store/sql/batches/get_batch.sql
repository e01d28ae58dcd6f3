-- get_batch: read a batch by primary key. No locks.
SELECT * FROM batchline.current_batches WHERE id = %(batch)s
