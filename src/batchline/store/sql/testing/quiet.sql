-- quiet: whether a worker of these `keys` and `schedules` has nothing to do now. Schedules must be registered. For tests only.
-- Locks: none.
SELECT
    NOT EXISTS (
        SELECT FROM batchline.spans AS s
        JOIN batchline.lanes AS n ON n.id = s.lane_id
        WHERE n.key = ANY (%(keys)s::text[])
          AND (s.worker_id IS NOT NULL OR s.available_at <= now() AND n.open AND n.deadline > now())
    )
    AND NOT EXISTS (
        SELECT FROM batchline.lanes AS n
        WHERE n.key = ANY (%(keys)s::text[]) AND n.open AND NOT n.drained AND n.deadline > now()
    )
    AND NOT EXISTS (
        SELECT FROM batchline.batches AS b
        WHERE b.ended_at IS NULL
          AND CASE
              WHEN b.finalizing_at IS NULL
              THEN b.expires_at <= now() OR b.cancelling_at IS NOT NULL OR b.expiring_at IS NOT NULL
              ELSE b.finalize_after IS NULL OR b.finalize_after <= now()
          END
    )
    AND NOT EXISTS (
        SELECT FROM batchline.outbox AS o WHERE o.delivered_at IS NULL AND o.available_at <= now()
    )
    AND NOT EXISTS (
        SELECT FROM batchline.hook_deliveries AS d
        WHERE d.delivered_at IS NULL AND d.failed_at IS NULL AND d.available_at <= now()
    )
    AND NOT EXISTS (
        SELECT FROM unnest(%(schedules)s::text[]) AS mine (name)
        LEFT JOIN batchline.schedules AS s ON s.tenant = %(tenant)s AND s.name = mine.name
        WHERE s.name IS NULL OR s.available_at <= now()
    ) AS quiet
