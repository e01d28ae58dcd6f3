-- yield_action: let another action have its turn, or another worker go on with this one. Locks: the action's row.
UPDATE batchline.bulk_actions SET due_at = now() WHERE id = %(id)s AND turns = %(turns)s AND ended_at IS NULL
