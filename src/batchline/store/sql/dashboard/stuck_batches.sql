-- stuck_batches: batches of a tenant that do not end as they should: those whose files could not be written at the last try,
-- with the first reason, and those that are past their deadline and not closed; how many, and since when the first.
--
-- Cost: one read of the partial index of the tenant's batches that have not ended. Locks: none.
SELECT
    count(*) FILTER (WHERE b.finalize_error IS NOT NULL) AS unwritten,
    min(b.finalizing_at) FILTER (WHERE b.finalize_error IS NOT NULL) AS unwritten_since,
    min(b.finalize_error) AS reason,
    count(*) FILTER (WHERE b.overdue) AS overdue,
    min(b.expires_at) FILTER (WHERE b.overdue) AS overdue_since,
    now() AS read_at
FROM (
    SELECT
        finalizing_at,
        finalize_error,
        expires_at,
        -- A worker closes a batch within seconds.
        finalizing_at IS NULL AND cancelling_at IS NULL AND expiring_at IS NULL AND expires_at < now() - interval '1 minute' AS overdue
    FROM batchline.batches
    WHERE tenant = %(tenant)s AND ended_at IS NULL
) AS b
