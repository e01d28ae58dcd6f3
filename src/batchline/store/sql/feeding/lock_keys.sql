-- lock_keys: let one transaction at a time take keys of an operation.
--
-- A submission takes keys block by block, in the order of its items. Two submissions with the same keys in another order would wait
-- for each other. With this lock, the second one waits before its first key. A transaction that submits to two operations must do so
-- in the same order as others.
--
-- Locks: an advisory one for the tenant and the operation, until the transaction ends.
SELECT pg_advisory_xact_lock(hashtextextended('batchline keys ' || %(tenant)s::text || ' ' || %(operation)s::text, 0))
