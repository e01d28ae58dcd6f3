-- poll: all that an idle worker asks, in one read-only statement: is there work, is a duty due, and how
-- many seconds until the next known thing comes due (a retry, a lease that ends, a deadline, a duty).
WITH
freed AS (
    SELECT s.available_at AS at, s.batch_id
    FROM spans AS s
    JOIN lanes AS n ON n.id = s.lane_id
    WHERE s.worker_id IS NULL
      AND n.open
      AND n.deadline > now()
      AND (%(keys)s::text[] IS NULL OR n.key = ANY (%(keys)s::text[]))
      AND (%(batch)s::uuid IS NULL OR s.batch_id = %(batch)s::uuid)
    ORDER BY s.available_at
    LIMIT 1
),
held AS (
    SELECT min(coalesce(w.lease_until, now())) AS at
    FROM (SELECT DISTINCT worker_id FROM spans WHERE worker_id IS NOT NULL AND worker_id <> %(worker)s) AS s
    LEFT JOIN workers AS w ON w.id = s.worker_id
),
deadline AS (
    SELECT min(expires_at) AS at
    FROM batches
    WHERE finalizing_at IS NULL AND ended_at IS NULL AND cancelling_at IS NULL AND expiring_at IS NULL
),
duty AS (
    SELECT min(due_at) AS at FROM duties
),
event AS (
    SELECT min(available_at) AS at FROM outbox WHERE delivered_at IS NULL
)
SELECT
    EXISTS (
        SELECT
        FROM lanes AS n
        WHERE n.open AND NOT n.drained AND n.deadline > now()
          AND (%(keys)s::text[] IS NULL OR n.key = ANY (%(keys)s::text[]))
          AND (%(batch)s::uuid IS NULL OR n.batch_id = %(batch)s::uuid)
    )
    OR coalesce(freed.at <= now(), false)
    OR coalesce(held.at < now(), false) AS claimable,
    EXISTS (
        SELECT
        FROM batches AS b
        LEFT JOIN workers AS w ON w.id = b.finalizer
        WHERE b.finalizing_at IS NOT NULL
          AND b.ended_at IS NULL
          AND (b.finalizer IS NULL OR coalesce(w.lease_until < now(), true))
          AND (%(batch)s::uuid IS NULL OR b.id = %(batch)s::uuid)
    ) AS finalizable,
    coalesce(least(deadline.at, duty.at, event.at) <= now(), false) AS duty_due,
    extract(epoch FROM least(freed.at, held.at, deadline.at, duty.at, event.at) - now())::float8 AS next_due
FROM duty
CROSS JOIN held
CROSS JOIN deadline
CROSS JOIN event
LEFT JOIN freed ON true
