-- lock_limits, 1 of 3: lock the global row. Every transaction that may add pending work (submit, append, retry) takes
-- this lock first. So they run one after the other, and each counts what the previous one committed.
--
-- Locks: the global row in limit_subjects, until the transaction ends. Then come lock_user_limits and measure_limits,
-- as separate statements: under READ COMMITTED only a new statement sees what was committed while this one waited.
SELECT 1 FROM batchline.limit_subjects WHERE tenant = '' AND user_id = '' FOR NO KEY UPDATE
