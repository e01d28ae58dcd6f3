-- erase_tenant_rows: delete a chunk of everything of a tenant that is found by its name: idempotency keys, notes of progress,
-- actions, webhooks and their deliveries, limits, schedules, keys of items and of users. Returns the number of deleted rows. A
-- webhook goes when its deliveries are gone.
--
-- Keys were revoked when the erasure began, so none of them is in use. Locks: these rows. An action that a worker is doing is
-- skipped: its act may wait for a limit that is deleted here. The erasure ends when the act has ended.
WITH
erasing AS (
    SELECT name FROM batchline.tenants WHERE name = %(tenant)s AND erasing_at IS NOT NULL
),
idempotency_key AS (
    DELETE FROM batchline.idempotency AS i
    USING (
        SELECT n.tenant, n.scope, n.key
        FROM batchline.idempotency AS n
        WHERE n.tenant = (SELECT name FROM erasing)
        ORDER BY n.tenant, n.scope, n.key
        LIMIT %(chunk)s
        FOR UPDATE SKIP LOCKED
    ) AS chunk
    WHERE i.tenant = chunk.tenant AND i.scope = chunk.scope AND i.key = chunk.key
    RETURNING 1
),
note AS (
    DELETE FROM batchline.progress AS p
    USING (
        SELECT n.batch_id, n.at
        FROM batchline.progress AS n
        WHERE n.tenant = (SELECT name FROM erasing)
        ORDER BY n.tenant, n.at
        LIMIT %(chunk)s
        FOR UPDATE SKIP LOCKED
    ) AS chunk
    WHERE p.batch_id = chunk.batch_id AND p.at = chunk.at
    RETURNING 1
),
action AS (
    DELETE FROM batchline.bulk_actions AS a
    USING (
        SELECT n.id
        FROM batchline.bulk_actions AS n
        WHERE n.tenant = (SELECT name FROM erasing)
        ORDER BY n.id
        LIMIT %(chunk)s
        FOR UPDATE SKIP LOCKED
    ) AS chunk
    WHERE a.id = chunk.id
    RETURNING 1
),
item_key AS (
    DELETE FROM batchline.item_keys AS k
    USING (
        SELECT n.tenant, n.operation, n.key
        FROM batchline.item_keys AS n
        WHERE n.tenant = (SELECT name FROM erasing)
        ORDER BY n.tenant, n.operation, n.key
        LIMIT %(chunk)s
        FOR UPDATE SKIP LOCKED
    ) AS chunk
    WHERE k.tenant = chunk.tenant AND k.operation = chunk.operation AND k.key = chunk.key
    RETURNING 1
),
schedule AS (
    DELETE FROM batchline.schedules AS s
    USING (
        SELECT n.tenant, n.name
        FROM batchline.schedules AS n
        WHERE n.tenant = (SELECT name FROM erasing)
        ORDER BY n.tenant, n.name
        LIMIT %(chunk)s
        FOR UPDATE SKIP LOCKED
    ) AS chunk
    WHERE s.tenant = chunk.tenant AND s.name = chunk.name
    RETURNING 1
),
delivery_chunk AS (
    SELECT d.webhook_id, d.event_id
    FROM batchline.webhooks AS w
    JOIN batchline.deliveries AS d ON d.webhook_id = w.id
    WHERE w.tenant = (SELECT name FROM erasing)
    LIMIT %(chunk)s
),
delivery AS (
    DELETE FROM batchline.deliveries AS d
    USING delivery_chunk AS chunk
    WHERE d.webhook_id = chunk.webhook_id AND d.event_id = chunk.event_id
    RETURNING 1
),
webhook AS (
    DELETE FROM batchline.webhooks AS w
    WHERE w.tenant = (SELECT name FROM erasing) AND NOT EXISTS (SELECT FROM delivery_chunk)
    RETURNING 1
),
limit_subject AS (
    DELETE FROM batchline.limit_subjects WHERE tenant = (SELECT name FROM erasing) RETURNING 1
),
limit_override AS (
    DELETE FROM batchline.limit_overrides WHERE tenant = (SELECT name FROM erasing) RETURNING 1
),
limit_exemption AS (
    DELETE FROM batchline.limit_exemptions WHERE tenant = (SELECT name FROM erasing) RETURNING 1
),
api_window AS (
    DELETE FROM batchline.api_windows WHERE tenant = (SELECT name FROM erasing) RETURNING 1
),
api_key AS (
    DELETE FROM batchline.api_keys WHERE tenant = (SELECT name FROM erasing) RETURNING 1
)
SELECT (
    (SELECT count(*) FROM idempotency_key)
    + (SELECT count(*) FROM note)
    + (SELECT count(*) FROM action)
    + (SELECT count(*) FROM item_key)
    + (SELECT count(*) FROM schedule)
    + (SELECT count(*) FROM delivery)
    + (SELECT count(*) FROM webhook)
    + (SELECT count(*) FROM limit_subject)
    + (SELECT count(*) FROM limit_override)
    + (SELECT count(*) FROM limit_exemption)
    + (SELECT count(*) FROM api_window)
    + (SELECT count(*) FROM api_key)
)::integer
