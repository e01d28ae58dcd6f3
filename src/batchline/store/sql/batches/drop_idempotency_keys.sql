-- drop_idempotency_keys: delete one chunk of expired idempotency keys. Returns the number.
WITH
old AS (
    SELECT tenant, scope, key
    FROM batchline.idempotency
    WHERE created_at < now() - %(older_than)s::interval
    ORDER BY created_at
    LIMIT %(chunk)s
    FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM batchline.idempotency AS i
    USING old
    WHERE (i.tenant, i.scope, i.key) = (old.tenant, old.scope, old.key)
    RETURNING 1
)
SELECT count(*)::integer FROM gone
