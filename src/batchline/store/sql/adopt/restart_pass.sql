-- restart_pass: read all old requests again: results of some were deleted here, with a file that has changed. Locks: the row
-- of the adoption, which the caller has locked.
UPDATE batchline.adoption SET seen_xid = 0, next_page = 0
