-- lock_tenant: lock the row of a tenant that is being erased. Returns no row if it is not, or if a transaction that is adding
-- data of the tenant has not ended (require_tenant): the caller tries again later. Without waiting: a transaction that
-- waits for this lock makes others wait behind it.
--
-- Locks: the tenant's row FOR UPDATE. What the next statement sees of the tenant is all that there will be.
SELECT name FROM batchline.tenants WHERE name = %(tenant)s AND erasing_at IS NOT NULL FOR UPDATE SKIP LOCKED
