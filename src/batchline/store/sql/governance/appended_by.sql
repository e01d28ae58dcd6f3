-- appended_by: whether a user has appended children to a governed batch, according to the audit log, which cannot be
-- changed. A decision runs it under lock_operation, so that no append is in progress. Uses the index on the batch's entries.
SELECT 1
FROM batchline.audit_log
WHERE batch_id = %(batch)s AND action = 'batch.appended' AND actor = %(user)s
LIMIT 1
