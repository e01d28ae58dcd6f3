-- lock_user_limits, 2 of 3: the user's row, made if it is not there.
--
-- An admin who changes the user's limits takes this row alone, so a change is seen whole or not at all.
-- Locks: the user's row in limit_subjects, after the row of all.
INSERT INTO batchline.limit_subjects (tenant, user_id)
VALUES (%(tenant)s, %(user)s)
ON CONFLICT (tenant, user_id) DO UPDATE SET checked_at = clock_timestamp()
