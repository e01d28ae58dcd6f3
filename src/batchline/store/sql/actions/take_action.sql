-- take_action: take the action that has waited longest, for `lease`. Whoever took it before may not go on: `turns` has changed.
-- `permitted`: whether its user still has an API key with the role that counted when it was requested.
--
-- Locks: the action's row, skipping locked ones: a worker that acts on a batch has locked its action.
UPDATE batchline.bulk_actions AS a
SET turns = a.turns + 1, due_at = now() + %(lease)s
WHERE a.id = (
    SELECT due.id
    FROM batchline.bulk_actions AS due
    WHERE due.ended_at IS NULL AND due.due_at <= now()
    ORDER BY due.due_at
    LIMIT 1
    FOR UPDATE SKIP LOCKED
)
RETURNING a.*, a.alone OR EXISTS (
    SELECT
    FROM batchline.api_keys AS k
    WHERE k.tenant = a.tenant AND k.name = a.actor AND k.role = a.role AND k.revoked_at IS NULL
) AS permitted
