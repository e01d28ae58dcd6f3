-- set_quota: give a tenant a quota, or none (NULL). Returns no row if the tenant is not known, is being erased or was erased.
--
-- It may be smaller than what is stored: nothing is deleted, and nothing more is accepted. Locks: the tenant's row, so an
-- upload that is being recorded is counted before or after.
UPDATE batchline.tenants
SET max_bytes = %(max_bytes)s::bigint
WHERE name = %(tenant)s AND erasing_at IS NULL AND erased_at IS NULL
RETURNING name
