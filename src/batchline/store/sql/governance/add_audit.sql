-- add_audit: something was done, in the transaction that did it. Nothing can change the row afterwards.
INSERT INTO batchline.audit_log (tenant, actor, action, batch_id, subject, detail)
VALUES (%(tenant)s, %(actor)s, %(action)s, %(batch)s::uuid, %(subject)s, %(detail)s)
