-- read_by_key: for the rest of this transaction, read `lines` by its key, never from end to end.
--
-- The statistics do not know a file that was copied a moment ago. Told that all rows belong to the one
-- large file that was there before, the planner reads all of them to find those of the new one.
SET LOCAL enable_seqscan = off
