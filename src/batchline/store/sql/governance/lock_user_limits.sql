-- lock_user_limits, 2 of 3: lock the user's row, and create it if it does not exist.
--
-- A change of the user's limits by an admin takes only this lock, so a submission sees all of the change or none of it.
-- Locks: the user's row in limit_subjects, after the global row.
INSERT INTO batchline.limit_subjects (tenant, user_id)
VALUES (%(tenant)s, %(user)s)
ON CONFLICT (tenant, user_id) DO UPDATE SET checked_at = clock_timestamp()
