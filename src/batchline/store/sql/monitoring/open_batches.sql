-- open_batches: how many batches have not ended, by what keeps them, and how long the first waits for its files.
--
-- `paused`: by a user. `stopped`: by a rule (too many failures, a cap) or after a sample.
-- `failed`: their files could not be written at the last try. `overdue`: past their deadline and not closed yet.
-- Cost: one read of the partial indexes of running and of finalizing batches. Locks: none.
SELECT
    running.in_progress,
    running.paused,
    running.stopped,
    running.held,
    running.closing,
    running.overdue,
    finalizing.batches AS finalizing,
    finalizing.failed,
    finalizing.age
FROM (
    SELECT
        count(*) FILTER (WHERE NOT closing AND held_at IS NULL AND paused_at IS NULL) AS in_progress,
        count(*) FILTER (WHERE NOT closing AND held_at IS NULL AND paused_at IS NOT NULL AND paused_by IS NULL) AS paused,
        count(*) FILTER (WHERE NOT closing AND held_at IS NULL AND paused_at IS NOT NULL AND paused_by IS NOT NULL) AS stopped,
        count(*) FILTER (WHERE NOT closing AND held_at IS NOT NULL) AS held,
        count(*) FILTER (WHERE closing) AS closing,
        count(*) FILTER (WHERE NOT closing AND expires_at <= now()) AS overdue
    FROM (
        SELECT
            held_at, paused_at, paused_by, expires_at,
            cancelling_at IS NOT NULL OR expiring_at IS NOT NULL AS closing
        FROM batchline.batches
        WHERE finalizing_at IS NULL AND ended_at IS NULL
    ) AS batch
) AS running
CROSS JOIN (
    SELECT
        count(*) AS batches,
        count(*) FILTER (WHERE finalize_error IS NOT NULL) AS failed,
        coalesce(extract(epoch FROM now() - min(finalizing_at)), 0)::float8 AS age
    FROM batchline.batches
    WHERE finalizing_at IS NOT NULL AND ended_at IS NULL
) AS finalizing
