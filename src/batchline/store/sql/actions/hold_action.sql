-- hold_action: lock an action for the act on its next batch. No row: it was cancelled, or another worker has taken it.
--
-- The transaction goes on with the act and advance_action. So a batch is done, and counted, once or not at all.
--
-- Locks: the action's row, before those of the batch. Nothing else locks it after a batch.
SELECT id FROM batchline.bulk_actions WHERE id = %(id)s AND turns = %(turns)s AND ended_at IS NULL FOR UPDATE
