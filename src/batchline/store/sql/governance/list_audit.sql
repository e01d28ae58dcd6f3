-- list_audit: the audit log, oldest first, page by page. `after` is the id of the last row of the previous page.
--
-- If `tenant` is NULL, returns the entries of all tenants, for an operator. One range of an index. Locks: none.
SELECT id, at, tenant, actor, action, batch_id, sequence_no, subject, detail
FROM batchline.audit_log
WHERE id > %(after)s
  AND (%(tenant)s::text IS NULL OR tenant = %(tenant)s::text)
  AND (%(batch)s::uuid IS NULL OR batch_id = %(batch)s::uuid)
  AND (%(since)s::timestamptz IS NULL OR at >= %(since)s::timestamptz)
ORDER BY id
LIMIT %(limit)s
