-- count_batches: the number of a tenant's batches, or of those with one of `statuses`, but no more than `limit`: a larger number
-- would take long to count, and nobody needs it exactly. Locks: none.
SELECT count(*)
FROM (
    (
        SELECT
        FROM batchline.batches AS b
        WHERE b.tenant = %(tenant)s AND %(statuses)s::text[] IS NULL
        ORDER BY b.created_at
        LIMIT %(limit)s
    )
    UNION ALL
    (
        SELECT
        FROM unnest(%(statuses)s::text[]) AS wanted (status)
        CROSS JOIN LATERAL (
            SELECT
            FROM batchline.batches AS b
            WHERE b.tenant = %(tenant)s
          AND batchline.batch_status_v1(
              b.cancelled_at, b.expired_at, b.failed_at, b.completed_at, b.cancelling_at, b.finalizing_at, b.paused_at,
              b.held_at, b.in_progress_at
          ) = wanted.status
            ORDER BY b.created_at
            LIMIT %(limit)s
        ) AS each
        LIMIT %(limit)s
    )
) AS found
