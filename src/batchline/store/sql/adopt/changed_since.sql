-- changed_since: how many transactions ago the last complete pass began. A row whose `written_by` is not older than that may
-- have changed since. Locks: none.
SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint - seen_xid FROM batchline.adoption
