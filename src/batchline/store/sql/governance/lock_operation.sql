-- lock_operation: read a governed batch like get_operation, and lock it against changes until the transaction ends.
-- Later statements of the transaction see everything that was committed before the lock was granted.
--
-- Locks: the batch row, like close and settle, then its row in operation_batches. Locking a row of a view locks the
-- rows behind it, in the order of its FROM.
SELECT * FROM batchline.governed_batches WHERE id = %(batch)s AND tenant = %(tenant)s FOR NO KEY UPDATE
