-- lock_operation: as get_operation, and nobody changes it until the transaction ends. What comes next in the transaction
-- sees all that was committed before the lock was had.
--
-- Locks: the batch row, as close and settle take it, then its row in operation_batches: a lock on a row of a view is one
-- on the rows that it is made of, in the order of its FROM.
SELECT * FROM batchline.governed_batches WHERE id = %(batch)s AND tenant = %(tenant)s FOR NO KEY UPDATE
