-- cancel_action: end an action before its next batch. Returns no row if it has ended.
--
-- Locks: the action's row. A worker holds it while it acts on one batch, so this waits for that batch.
UPDATE batchline.bulk_actions
SET cancelled_at = now(), cancelled_by = %(actor)s, ended_at = now()
WHERE id = %(id)s AND ended_at IS NULL
RETURNING *, pg_notify('batchline', 'action ' || id) IS NULL AS notified
