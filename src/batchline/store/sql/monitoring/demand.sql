-- demand: the work of each upstream and model, and how fast it must be and is being done.
--
-- `keys` and `upstreams`: the upstream of each routing key that the settings name. Other keys that are URLs, and those
-- of Python operations, are upstreams themselves; all other keys belong to `other`. Keys LIKE `excluded` (batches of `run`, which no worker takes) do not count.
-- `limit`: how many rows at most, those with the most waiting lines.
--
-- One row per upstream and model:
--   waiting      lines that no worker holds: never claimed, or to be tried again, now or later.
--                Lines that no step has begun with do not count
--   waited       for how many seconds the first of them has waited: since its batch began if none of its lane's lines was
--                claimed, or since it came due again; null: none of these
--   next_deadline  seconds until the first deadline; null: none
--   in_flight, rate  from the reports of live workers: lines in flight, and lines finished per second
-- and of the whole upstream, in each of its rows:
--   workers      live workers that reported on it; `limited`: it slows one of them down
--   required     lines per second that meet every deadline: the largest of (lines due by a deadline) / (time until then)
--   margin       seconds that are left at the tightest deadline if the work goes on at the present rate; if the rate is not
--                known, until the first deadline
--   tasks        a provider works on lines of it
--
-- Spans that are held are not read: while a snapshot is held elsewhere, their index is full of dead entries.
-- Cost: one read of the open lanes and of the free spans without a task, and one probe per provider. Locks: none.
WITH RECURSIVE
free AS (
    SELECT
        s.lane_id,
        sum(
            -- One piece, as most spans have, is counted without unnesting it: that takes a third of the time.
            CASE
                WHEN s.outstanding = int4multirange(range_merge(s.outstanding))
                THEN upper(s.outstanding) - lower(s.outstanding)
                ELSE batchline.span_size(s.outstanding)
            END
        ) AS items,
        min(s.available_at) FILTER (WHERE s.available_at <= now()) AS waiting_since
    FROM batchline.spans AS s
    -- Lines that a step holds back are available in the year 9999.
    WHERE s.worker_id IS NULL AND s.task_id IS NULL AND s.available_at < '9999-12-31 00:00:00+00'
    GROUP BY s.lane_id
),
work AS (
    SELECT n.key, n.model, n.deadline, n.total - coalesce(moved.next, n.next) AS items, begun.at AS waiting_since
    FROM batchline.lanes AS n
    LEFT JOIN LATERAL (
        SELECT c.next FROM batchline.cursors AS c WHERE c.lane_id = n.id ORDER BY c.next DESC LIMIT 1
    ) AS moved ON true
    LEFT JOIN LATERAL (
        SELECT b.in_progress_at AS at
        FROM batchline.batches AS b
        WHERE b.id = n.batch_id AND coalesce(moved.next, n.next) = 0
        LIMIT 1
    ) AS begun ON true
    WHERE n.open AND NOT n.drained AND n.deadline > now()
    UNION ALL
    SELECT n.key, n.model, n.deadline, free.items, free.waiting_since
    FROM free
    CROSS JOIN LATERAL (SELECT * FROM batchline.lanes WHERE lanes.id = free.lane_id LIMIT 1) AS n
    WHERE n.open AND n.deadline > now()
),
-- A loose index scan: the first task of each provider's upstream.
task AS (
    (SELECT s.upstream AS key FROM batchline.spans AS s WHERE s.task_id IS NOT NULL ORDER BY s.upstream LIMIT 1)
    UNION ALL
    SELECT following.key
    FROM task
    CROSS JOIN LATERAL (
        SELECT s.upstream AS key
        FROM batchline.spans AS s
        WHERE s.task_id IS NOT NULL AND s.upstream > task.key
        ORDER BY s.upstream
        LIMIT 1
    ) AS following
),
found (key, model, seconds_left, items, waiting_since, worker_id, in_flight, rate, limited, tasks) AS (
    SELECT
        key, model,
        -- Without a deadline, lanes have one in the year 9999.
        CASE WHEN deadline < '9999-01-01' THEN date_part('epoch', deadline - now()) END,
        items::float8, waiting_since, NULL::uuid, 0, 0::float8, false, false
    FROM work
    UNION ALL
    SELECT load.key, load.model, NULL, 0, NULL, w.id, load.in_flight, load.rate, load.limited, false
    FROM batchline.workers AS w
    CROSS JOIN LATERAL (SELECT * FROM batchline.worker_reports AS r WHERE r.worker_id = w.id LIMIT 1) AS r
    CROSS JOIN LATERAL jsonb_to_recordset(r.loads)
        AS load (key text, model text, in_flight integer, rate float8, limited boolean)
    WHERE w.lease_until >= now()
    UNION ALL
    SELECT key, NULL, NULL, 0, NULL, NULL, 0, 0, false, true FROM task
),
entry AS (
    SELECT
        coalesce(
            known.upstream,
            CASE WHEN f.key LIKE ANY ('{http://%%,https://%%,python:%%}') THEN f.key ELSE %(other)s END
        ) AS upstream,
        f.*
    FROM found AS f
    LEFT JOIN unnest(%(keys)s::text[], %(upstreams)s::text[]) AS known (key, upstream) ON known.key = f.key
    WHERE f.key NOT LIKE ALL (%(excluded)s::text[])
),
load AS (
    SELECT
        upstream,
        count(DISTINCT worker_id) AS workers,
        sum(in_flight) AS in_flight,
        sum(rate) AS rate,
        bool_or(limited) AS limited,
        bool_or(tasks) AS tasks
    FROM entry
    GROUP BY upstream
),
due AS (
    SELECT upstream, seconds_left, sum(items) OVER (PARTITION BY upstream ORDER BY seconds_left) AS items
    FROM entry
    WHERE seconds_left IS NOT NULL
),
pressure AS (
    SELECT
        due.upstream,
        -- In the last minute before a deadline, any remaining line would need an absurd rate.
        max((due.items + load.in_flight) / greatest(due.seconds_left, 60)) AS required,
        min(
            due.seconds_left - CASE WHEN load.rate > 0 THEN (due.items + load.in_flight) / load.rate ELSE 0 END
        ) AS margin
    FROM due
    JOIN load ON load.upstream = due.upstream
    GROUP BY due.upstream
),
of_model AS (
    SELECT
        upstream,
        model,
        sum(items) AS waiting,
        date_part('epoch', now() - min(waiting_since)) AS waited,
        min(seconds_left) AS next_deadline,
        sum(in_flight) AS in_flight,
        sum(rate) AS rate
    FROM entry
    GROUP BY upstream, model
)
SELECT
    m.upstream,
    m.model,
    m.waiting::bigint,
    m.waited,
    m.next_deadline,
    m.in_flight::bigint,
    m.rate,
    load.workers,
    load.limited,
    coalesce(pressure.required, 0) AS required,
    pressure.margin,
    load.tasks
FROM of_model AS m
JOIN load ON load.upstream = m.upstream
LEFT JOIN pressure ON pressure.upstream = m.upstream
ORDER BY m.waiting DESC, m.upstream, m.model
LIMIT %(limit)s
