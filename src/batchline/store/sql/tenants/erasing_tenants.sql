-- erasing_tenants: the tenants that are being erased, those that have waited longest first. Locks: none.
SELECT name FROM batchline.tenants WHERE erasing_at IS NOT NULL ORDER BY erasing_at, name
