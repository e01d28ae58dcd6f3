-- drop_exemption: from now on the user's limits hold again. Under lock_user_limits. No row where there was none.
DELETE FROM batchline.limit_exemptions WHERE tenant = %(tenant)s AND user_id = %(user)s RETURNING user_id
