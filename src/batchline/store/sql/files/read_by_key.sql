-- read_by_key: for the rest of this transaction, read `lines` by its key, never with a sequential scan.
--
-- The statistics do not include a file that was copied a moment ago. If they say that all rows belong to one large
-- older file, the planner reads all of them to find those of the new one.
SET LOCAL enable_seqscan = off
