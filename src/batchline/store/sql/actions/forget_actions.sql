-- forget_actions: delete actions that ended longer ago. The audit log keeps what they did. Locks: their rows.
DELETE FROM batchline.bulk_actions WHERE ended_at < now() - %(older_than)s::interval
