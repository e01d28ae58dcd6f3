-- end_action: no batch is left, or `error` says why it ends before. No row: it has ended, or another worker has taken it.
-- Locks: the action's row.
UPDATE batchline.bulk_actions
SET ended_at = now(), error = %(error)s
WHERE id = %(id)s AND turns = %(turns)s AND ended_at IS NULL
RETURNING *, pg_notify('batchline', 'action ' || id) IS NULL AS notified
