-- lock_adoption: one command at a time works on an adoption: of two, the second waits for the first one's step, and then
-- sees the phase that it has reached. Locks: the row of the adoption, until the transaction ends.
SELECT phase FROM batchline.adoption FOR UPDATE
