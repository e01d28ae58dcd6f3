-- drop_exemption: remove a user's exemption, so the limits apply again. Runs under lock_user_limits. Returns no row if
-- there was none.
DELETE FROM batchline.limit_exemptions WHERE tenant = %(tenant)s AND user_id = %(user)s RETURNING user_id
