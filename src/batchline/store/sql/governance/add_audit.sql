-- add_audit: add a row to the audit log, in the transaction of the act that it records. Triggers prevent any change to
-- the row.
INSERT INTO batchline.audit_log (tenant, actor, action, batch_id, subject, detail)
VALUES (%(tenant)s, %(actor)s, %(action)s, %(batch)s::uuid, %(subject)s, %(detail)s)
