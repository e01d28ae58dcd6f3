-- begin_pass: a pass over the old requests begins: transactions that have not ended now are not seen by it for sure.
-- Locks: the row of the adoption, which the caller has locked.
UPDATE batchline.adoption SET pass_xid = pg_snapshot_xmin(pg_current_snapshot())::text::bigint
