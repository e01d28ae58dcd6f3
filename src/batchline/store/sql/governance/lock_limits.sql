-- lock_limits, 1 of 3: the row of all. Whoever may raise what is pending (submit, append, retry) takes it first, so
-- they come one after the other, and each counts what the one before has committed.
--
-- Locks: the row of all in limit_subjects, until the transaction ends. Then lock_user_limits, then measure_limits, each
-- a statement of its own: under READ COMMITTED only a new statement sees what was committed while this one waited.
SELECT 1 FROM batchline.limit_subjects WHERE tenant = '' AND user_id = '' FOR NO KEY UPDATE
