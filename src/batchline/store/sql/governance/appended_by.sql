-- appended_by: whether a user has added children to a governed batch: the audit log knows, and cannot be changed. Under
-- lock_operation, so that no append is under way. By the index of the batch's own entries.
SELECT 1
FROM batchline.audit_log
WHERE batch_id = %(batch)s AND action = 'batch.appended' AND actor = %(user)s
LIMIT 1
