-- claim_sample: give up to `limit` drawn lines of a batch to `worker`, though the batch is paused (draw_sample). As claim
-- otherwise; spans are small and are taken whole. A line that must be tried again waits for the rest of the batch.
--
-- The rest of the batch is in spans that are available since the pause. All others are of the sample: not sent yet, given back
-- by a worker that stopped, or held by one whose lease has ended. Lines of the latter may have been submitted to a provider,
-- and their span says so then, as after claim_returned.
--
-- `max_tasks`, `keys`, `excluded`, `below`: as for claim. The sample of a provider's batch is in spans of one line. While there
-- is no room for another task, only lines are given that count as tasks already.
--
-- Locks: with `max_tasks`, that of task_room; the worker's row; spans, never waiting. Free and abandoned ones are looked for apart: a span that was free when this
-- statement began, and that another worker has claimed since, is not taken for an abandoned one, whatever is known here of
-- that worker's lease.
--
-- `ORDER BY s.id + 0`: by s.id alone, PostgreSQL 15 reads the spans of all batches in the order of their ids.
WITH
renewed AS MATERIALIZED (
    SELECT batchline.renew_lease_v1(%(worker)s, %(name)s, %(lease)s) IS NULL AS done
),
room AS MATERIALIZED (
    SELECT CASE
        WHEN %(max_tasks)s::integer IS NOT NULL THEN batchline.task_room_v1(
            %(keys)s::text[], %(excluded)s::text[], %(below)s::text[], %(max_tasks)s::integer
        )
    END AS tasks
),
sampled AS MATERIALIZED (
    SELECT
        b.id,
        b.paused_at,
        room.tasks <= 0 AS full,
        CASE
            WHEN room.tasks > 0 THEN least(room.tasks, %(limit)s::integer)
            WHEN room.tasks <= 0 THEN %(limit)s::integer
            ELSE greatest(1, %(limit)s::integer / 16)
        END AS spans
    FROM room
    CROSS JOIN batchline.batches AS b
    WHERE b.id = %(batch)s AND b.paused_by = 'sample'
),
free AS MATERIALIZED (
    SELECT s.id
    FROM batchline.spans AS s
    JOIN sampled AS b ON b.id = s.batch_id
    JOIN batchline.lanes AS n ON n.id = s.lane_id AND n.deadline > now()
    WHERE s.worker_id IS NULL AND s.available_at <> b.paused_at AND s.available_at <= now() AND s.attempt = 1
      AND (b.full IS NOT TRUE OR s.task_id IS NOT NULL OR s.submission IS NOT NULL)
    ORDER BY s.id + 0
    LIMIT (SELECT sampled.spans FROM sampled)
    FOR UPDATE OF s SKIP LOCKED
),
abandoned AS MATERIALIZED (
    SELECT s.id
    FROM batchline.spans AS s
    JOIN sampled AS b ON b.id = s.batch_id
    JOIN batchline.lanes AS n ON n.id = s.lane_id AND n.deadline > now()
    JOIN batchline.workers AS w ON w.id = s.worker_id AND w.lease_until < now()
    WHERE s.worker_id <> %(worker)s AND s.attempt = 1
    ORDER BY s.id + 0
    LIMIT (SELECT sampled.spans - (SELECT count(*) FROM free) FROM sampled)
    FOR UPDATE OF s SKIP LOCKED
),
due AS (
    SELECT free.id, false AS abandoned FROM free
    UNION ALL
    SELECT abandoned.id, true FROM abandoned
)
UPDATE batchline.spans AS s
SET worker_id = %(worker)s,
    claimed_at = now(),
    submission = CASE
        WHEN due.abandoned AND s.task_id IS NULL THEN coalesce(s.submission, 'interrupted')
        ELSE s.submission
    END
FROM due, renewed, batchline.batches AS b, batchline.lanes AS n
WHERE s.id = due.id AND b.id = s.batch_id AND n.id = s.lane_id AND renewed.done IS NOT NULL
RETURNING
    s.id, s.lane_id, s.batch_id, s.attempt, s.task_id, batchline.span_size(s.outstanding), n.url, n.model, n.key,
    extract(epoch FROM n.deadline - now())::double precision,
    b.settings,
    -- It was renewed if a third had passed.
    extract(epoch FROM %(lease)s::interval)::double precision * 2 / 3,
    s.submission
