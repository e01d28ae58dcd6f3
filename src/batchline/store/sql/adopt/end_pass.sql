-- end_pass: a pass over the old requests has ended. Locks: the row of the adoption, which the caller has locked.
UPDATE batchline.adoption SET seen_xid = pass_xid, next_page = 0
