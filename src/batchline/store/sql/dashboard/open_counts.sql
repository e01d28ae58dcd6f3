-- open_counts: how many batches of a tenant have not ended, and of these how many are paused, wait for an approval, or are past
-- their deadline; and how many ended with failures in the last hour (up to `limit`).
--
-- Cost: one read of the partial index of batches that have not ended, and one range of batches_by_end. Locks: none.
SELECT
    running.open, running.paused, running.waiting_for_approval, running.overdue, recent.failed, now()
FROM (
    SELECT
        count(*) AS open,
        count(*) FILTER (WHERE paused_at IS NOT NULL AND held_at IS NULL) AS paused,
        count(*) FILTER (WHERE held_at IS NOT NULL) AS waiting_for_approval,
        count(*) FILTER (WHERE expires_at <= now()) AS overdue
    FROM batchline.batches AS b
    WHERE b.tenant = %(tenant)s
      AND b.ended_at IS NULL
      AND (%(viewer)s::text IS NULL OR b.submitted_by IS NULL OR b.submitted_by = %(viewer)s::text)
) AS running
CROSS JOIN (
    SELECT count(*) FILTER (WHERE ended.failed > 0 OR ended.failed_at IS NOT NULL) AS failed
    FROM (
        SELECT b.failed, b.failed_at
        FROM batchline.batches AS b
        WHERE b.tenant = %(tenant)s
          AND b.ended_at IS NOT NULL
          AND b.ended_at > now() - interval '1 hour'
          AND (%(viewer)s::text IS NULL OR b.submitted_by IS NULL OR b.submitted_by = %(viewer)s::text)
        ORDER BY b.ended_at DESC
        LIMIT %(limit)s
    ) AS ended
) AS recent
