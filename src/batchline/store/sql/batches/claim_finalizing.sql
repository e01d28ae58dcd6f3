-- claim_finalizing: take one batch to finalize. A worker holds it as long as its lease is renewed. Returns no row when
-- there is none to take: none waits, each waits for its back-off, or others have them.
--
-- Tenants take turns: the first one after `after_tenant` that has a batch to take, in alphabetical order and around.
-- Of a tenant's batches the one that has waited longest. `under_way` are those that this worker is finalizing now;
-- `max_lines` leaves larger batches alone (NULL: none).
--
-- Locks: the batch row, skipping rows that are locked. Cost: one probe per tenant that has a batch in finalizing.
WITH RECURSIVE
tenant AS (
    (
        SELECT b.tenant AS name
        FROM batchline.batches AS b
        WHERE b.finalizing_at IS NOT NULL AND b.ended_at IS NULL
        ORDER BY b.tenant
        LIMIT 1
    )
    UNION ALL
    SELECT following.name
    FROM tenant AS t
    CROSS JOIN LATERAL (
        SELECT b.tenant AS name
        FROM batchline.batches AS b
        WHERE b.finalizing_at IS NOT NULL AND b.ended_at IS NULL AND b.tenant > t.name
        ORDER BY b.tenant
        LIMIT 1
    ) AS following
),
batch AS (
    SELECT waiting.id
    FROM (SELECT name FROM tenant ORDER BY name <= %(after_tenant)s, name) AS t
    CROSS JOIN LATERAL (
        SELECT b.id
        FROM batchline.batches AS b
        WHERE b.finalizing_at IS NOT NULL
          AND b.ended_at IS NULL
          AND b.tenant = t.name
          AND (b.finalize_after IS NULL OR b.finalize_after <= now())
          AND (%(batch)s::uuid IS NULL OR b.id = %(batch)s::uuid)
          AND (%(max_lines)s::integer IS NULL OR b.total <= %(max_lines)s::integer)
          AND b.id <> ALL (%(under_way)s::uuid[])
          AND (
              b.finalizer IS NULL
              -- Its own from before, which it could not yield.
              OR b.finalizer = %(worker)s
              OR NOT EXISTS (SELECT FROM batchline.workers AS w WHERE w.id = b.finalizer AND w.lease_until >= now())
          )
        ORDER BY coalesce(b.finalize_after, b.finalizing_at)
        LIMIT 1
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS waiting
    LIMIT 1
),
renewed AS (
    INSERT INTO batchline.workers (id, name, lease_until)
    SELECT %(worker)s, %(name)s, now() + %(lease)s
    WHERE EXISTS (SELECT FROM batch)
    ON CONFLICT (id) DO UPDATE SET lease_until = excluded.lease_until
)
UPDATE batchline.batches AS b
SET finalizer = %(worker)s
FROM batch
WHERE b.id = batch.id
RETURNING b.*
