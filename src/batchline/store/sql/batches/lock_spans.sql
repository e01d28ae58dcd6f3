-- lock_spans: wait for settles and parks of a batch that is to be deleted, so that the next statement sees what they did.
-- Locks: the batch's spans in id order.
SELECT FROM batchline.spans WHERE batch_id = %(batch)s ORDER BY id FOR UPDATE
