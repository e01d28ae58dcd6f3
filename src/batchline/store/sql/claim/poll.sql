-- poll: all checks of an idle worker in one statement. Is there work to claim, a batch to finalize, a maintenance
-- task due, an event to deliver, one of this worker's `hooks` to run, or one of its schedules? How many seconds until the next known thing is due
-- (a retry, the end of a lease, a deadline, a step, a maintenance task, an event, a delivery, an action on many batches, a schedule, a finalization
-- that failed before)? Which of the batches that the worker holds lines of (`held`) have another concurrency now than it knows
-- (`limits`; 0: none)?
-- No locks.
WITH RECURSIVE
-- When each lane's first free span is due, by a loose index scan: one probe per lane, not one row per span.
free AS (
    (
        SELECT s.lane_id, s.available_at
        FROM batchline.spans AS s
        WHERE s.worker_id IS NULL
        ORDER BY s.lane_id, s.available_at
        LIMIT 1
    )
    UNION ALL
    SELECT following.*
    FROM free
    CROSS JOIN LATERAL (
        SELECT s.lane_id, s.available_at
        FROM batchline.spans AS s
        WHERE s.worker_id IS NULL AND s.lane_id > free.lane_id
        ORDER BY s.lane_id, s.available_at
        LIMIT 1
    ) AS following
),
freed AS (
    SELECT min(free.available_at) AS at
    FROM free
    CROSS JOIN LATERAL (SELECT * FROM batchline.lanes WHERE lanes.id = free.lane_id LIMIT 1) AS n
    WHERE n.open
      AND n.deadline > now()
      AND batchline.in_scope_v1(n.key, %(keys)s::text[], %(excluded)s::text[], NULL)
      AND (%(batch)s::uuid IS NULL OR n.batch_id = %(batch)s::uuid)
),
-- When the first lease ends under which another worker holds what this worker could run.
held AS (
    -- A worker that an older version expired with '-infinity' counts as just expired: PostgreSQL before 17 refuses to
    -- subtract infinite times.
    SELECT min(greatest(w.lease_until, now() - interval '1 second')) AS at
    FROM batchline.workers AS w
    CROSS JOIN LATERAL (
        SELECT
        FROM batchline.spans AS s
        CROSS JOIN LATERAL (SELECT * FROM batchline.lanes WHERE lanes.id = s.lane_id LIMIT 1) AS n
        WHERE s.worker_id = w.id
          -- A relay takes chunks over, and looks for them by itself.
          AND (s.task_id IS NULL OR NOT starts_with(s.task_id, 'chunk:'))
          AND n.open
          AND n.deadline > now()
          AND batchline.in_scope_v1(n.key, %(keys)s::text[], %(excluded)s::text[], NULL)
          AND (%(batch)s::uuid IS NULL OR s.batch_id = %(batch)s::uuid)
        LIMIT 1
    ) AS span
    WHERE w.id <> %(worker)s
),
-- Whether a lane has fresh lines: one of all lanes, of some keys, or of one batch, each by its own index.
fresh AS (
    (
        SELECT n.id
        FROM batchline.lanes AS n
        WHERE open AND NOT drained AND n.deadline > now()
          AND %(keys)s::text[] IS NULL
          AND n.key NOT LIKE ALL (%(excluded)s::text[])
          AND %(batch)s::uuid IS NULL
        ORDER BY n.key
        LIMIT 1
    )
    UNION ALL
    (
        SELECT lane.id
        FROM unnest(%(keys)s::text[]) AS at (key)
        CROSS JOIN LATERAL (
            SELECT n.id
            FROM batchline.lanes AS n
            WHERE open AND NOT drained AND n.key = at.key AND n.deadline > now()
            ORDER BY n.tenant
            LIMIT 1
        ) AS lane
        WHERE %(batch)s::uuid IS NULL
        LIMIT 1
    )
    UNION ALL
    (
        SELECT n.id
        FROM batchline.lanes AS n
        WHERE open AND NOT drained AND n.deadline > now()
          AND n.batch_id = %(batch)s::uuid
          AND (%(keys)s::text[] IS NULL OR n.key = ANY (%(keys)s::text[]))
          AND n.key NOT LIKE ALL (%(excluded)s::text[])
        LIMIT 1
    )
),
-- When the first closing batch will have no live worker left, so that it can be concluded.
closing AS (
    SELECT min(greatest(
        (
            SELECT max(w.lease_until)
            FROM batchline.spans AS s
            JOIN batchline.workers AS w ON w.id = s.worker_id
            WHERE s.batch_id = b.id
        ),
        now()
    )) AS at
    FROM batchline.batches AS b
    WHERE b.finalizing_at IS NULL AND (b.cancelling_at IS NOT NULL OR b.expiring_at IS NOT NULL)
),
deadline AS (
    SELECT min(expires_at) AS at
    FROM batchline.batches
    WHERE finalizing_at IS NULL AND ended_at IS NULL AND cancelling_at IS NULL AND expiring_at IS NULL
),
-- When the next step of a batch begins.
step AS (
    SELECT min(next_step_at) AS at
    FROM batchline.batches
    WHERE next_step_at IS NOT NULL
      AND finalizing_at IS NULL AND paused_at IS NULL AND held_at IS NULL
      AND cancelling_at IS NULL AND expiring_at IS NULL
),
maintenance AS (
    SELECT min(due_at) AS at FROM batchline.maintenance_tasks
),
event AS (
    SELECT min(available_at) AS at FROM batchline.outbox WHERE delivered_at IS NULL
),
delivery AS (
    SELECT min(due_at) AS at FROM batchline.webhooks WHERE due_at IS NOT NULL
),
hook AS (
    SELECT min(due.available_at) AS at
    FROM unnest(%(hooks)s::text[]) AS h (name)
    CROSS JOIN LATERAL (
        SELECT d.available_at
        FROM batchline.hook_deliveries AS d
        WHERE d.hook = h.name AND d.delivered_at IS NULL AND d.failed_at IS NULL
        ORDER BY d.available_at
        LIMIT 1
    ) AS due
),
schedule AS (
    SELECT min(due.available_at) AS at
    FROM unnest(%(schedule_names)s::text[], %(schedule_definitions)s::text[]) AS mine (name, definition)
    CROSS JOIN LATERAL (
        SELECT s.available_at
        FROM batchline.schedules AS s
        WHERE s.tenant = %(schedule_tenant)s AND s.name = mine.name AND s.definition = mine.definition
        LIMIT 1
    ) AS due
),
action AS (
    SELECT min(due_at) AS at FROM batchline.bulk_actions WHERE ended_at IS NULL
),
changed AS (
    SELECT coalesce(array_agg(b.id), '{}') AS ids, coalesce(array_agg(b.concurrency), '{}') AS limits
    FROM unnest(%(held)s::uuid[], %(limits)s::integer[]) AS known (id, concurrency)
    CROSS JOIN LATERAL (SELECT * FROM batchline.batches WHERE batches.id = known.id LIMIT 1) AS b
    WHERE coalesce(b.concurrency, 0) <> known.concurrency
),
-- Of the batches that nobody else is finalizing: whether one can be finalized now, and else when the first can be. Not
-- both: while an object store is unreachable, many are due and not tried, and each that joins them must not cost a poll.
finalizing AS (
    SELECT
        coalesce(bool_or(b.finalize_after IS NULL OR b.finalize_after <= now()), false) AS due,
        CASE WHEN min(coalesce(b.finalize_after, now())) > now() THEN min(b.finalize_after) END AS at
    FROM batchline.batches AS b
    WHERE b.finalizing_at IS NOT NULL
      AND b.ended_at IS NULL
      AND (
          b.finalizer IS NULL
          OR b.finalizer = %(worker)s
          OR NOT EXISTS (SELECT FROM batchline.workers AS w WHERE w.id = b.finalizer AND w.lease_until >= now())
      )
      AND (%(batch)s::uuid IS NULL OR b.id = %(batch)s::uuid)
)
SELECT
    EXISTS (SELECT FROM fresh)
    OR coalesce(freed.at <= now(), false)
    OR coalesce(held.at < now(), false) AS claimable,
    finalizing.due AS finalizable,
    coalesce(least(deadline.at, maintenance.at, closing.at, step.at) <= now(), false) AS maintenance_due,
    extract(
        epoch FROM least(
            freed.at,
            held.at,
            deadline.at,
            maintenance.at,
            event.at,
            delivery.at,
            hook.at,
            closing.at,
            step.at,
            action.at,
            schedule.at,
            finalizing.at
        ) - now()
    )::float8 AS next_due,
    extract(epoch FROM least(freed.at, step.at) - now())::float8 AS next_free,
    coalesce(least(event.at, delivery.at) <= now(), false) AS news,
    coalesce(hook.at <= now(), false) AS hooks_due,
    coalesce(action.at <= now(), false) AS actions_due,
    coalesce(schedule.at <= now(), false) AS schedules_due,
    changed.ids AS changed,
    changed.limits
FROM maintenance
CROSS JOIN held
CROSS JOIN closing
CROSS JOIN deadline
CROSS JOIN step
CROSS JOIN event
CROSS JOIN delivery
CROSS JOIN hook
CROSS JOIN action
CROSS JOIN schedule
CROSS JOIN changed
CROSS JOIN finalizing
CROSS JOIN freed
