-- claim: hand up to `limit` items to `worker`, and renew its lease if it got any.
--
-- First whatever was handed out before and is free again: spans whose time has come (retries, released
-- work) and spans of workers whose lease is over. Then fresh lines: move the cursor of as many open lanes
-- as it takes, tenants by what each has in flight, lanes of a tenant by deadline. A batch given in `batch`
-- narrows both to that batch. Only spans are returned; fetch.sql reads their lines afterwards, so a client
-- that freezes in the middle of a megabyte of lines holds no lock.
--
-- Locks: spans (SKIP LOCKED: another worker's catch is not worth waiting for), then lanes in id order.
-- Lanes are waited for: a neighbour holds one for a millisecond, and a worker must not go idle for that.
-- Safe because what is handed out is computed from the locked, newest version of each lane (`lane`), not
-- from the snapshot that chose the candidates. Cost: O(limit), whatever the size of files or their progress.
WITH RECURSIVE
due AS (
    SELECT s.id, s.lane_id, s.outstanding, s.task_id
    FROM spans AS s
    JOIN lanes AS n ON n.id = s.lane_id
    WHERE s.worker_id IS NULL
      AND s.available_at <= now()
      AND n.open
      AND n.deadline > now()
      AND (%(keys)s::text[] IS NULL OR n.key = ANY (%(keys)s::text[]))
      AND (%(batch)s::uuid IS NULL OR s.batch_id = %(batch)s::uuid)
    ORDER BY s.available_at, s.id
    LIMIT %(limit)s
    FOR UPDATE OF s SKIP LOCKED
),
abandoned AS (
    SELECT s.id, s.lane_id, s.outstanding, s.task_id
    FROM spans AS s
    JOIN lanes AS n ON n.id = s.lane_id
    WHERE s.worker_id IN (
              SELECT held.worker_id
              FROM (SELECT DISTINCT worker_id FROM spans WHERE worker_id IS NOT NULL) AS held
              LEFT JOIN workers AS w ON w.id = held.worker_id
              WHERE coalesce(w.lease_until < now(), true)
          )
      AND n.open
      AND n.deadline > now()
      AND (%(keys)s::text[] IS NULL OR n.key = ANY (%(keys)s::text[]))
      AND (%(batch)s::uuid IS NULL OR s.batch_id = %(batch)s::uuid)
    ORDER BY s.id
    LIMIT %(limit)s
    FOR UPDATE OF s SKIP LOCKED
),
freed AS (
    SELECT id, outstanding, task_id, size, sum(size) OVER (ORDER BY rank, id) - size AS before
    FROM (
        SELECT 1 AS rank, due.*, span_size(outstanding) AS size FROM due
        UNION ALL
        SELECT 2, abandoned.*, span_size(outstanding) FROM abandoned
    ) AS both_kinds
),
-- A task of a provider is one piece and is taken whole; any other span is split when it is too large.
wanted AS (
    SELECT
        id,
        outstanding,
        CASE WHEN task_id IS NOT NULL THEN size ELSE least(size, %(limit)s - before)::integer END AS take,
        size
    FROM freed
    WHERE before < %(limit)s
),
whole AS (
    UPDATE spans AS s
    SET worker_id = %(worker)s
    FROM wanted AS w
    WHERE s.id = w.id AND w.take = w.size
    RETURNING s.id, s.lane_id, s.outstanding, s.attempt, s.task_id
),
split AS (
    UPDATE spans AS s
    SET worker_id = NULL,
        available_at = least(s.available_at, now()),
        outstanding = w.outstanding - span_head(w.outstanding, w.take)
    FROM wanted AS w
    WHERE s.id = w.id AND w.take < w.size
    RETURNING s.lane_id, s.batch_id, s.attempt, span_head(w.outstanding, w.take) AS head
),
head AS (
    INSERT INTO spans (lane_id, batch_id, outstanding, worker_id, attempt)
    SELECT lane_id, batch_id, head, %(worker)s, attempt FROM split
    RETURNING id, lane_id, outstanding, attempt, task_id
),
room AS (
    SELECT (%(limit)s - coalesce(sum(take), 0))::integer AS n FROM wanted
),
-- The keys that this worker serves and that have work: as told, or found by a loose index scan.
found_key AS (
    (
        SELECT key
        FROM lanes
        WHERE open AND NOT drained AND %(keys)s::text[] IS NULL AND %(batch)s::uuid IS NULL
        ORDER BY key
        LIMIT 1
    )
    UNION ALL
    SELECT (SELECT n.key FROM lanes AS n WHERE open AND NOT drained AND n.key > f.key ORDER BY n.key LIMIT 1)
    FROM found_key AS f
    WHERE f.key IS NOT NULL
),
served AS (
    SELECT key FROM found_key WHERE key IS NOT NULL
    UNION ALL
    SELECT DISTINCT unnest(%(keys)s::text[]) WHERE %(batch)s::uuid IS NULL
),
-- The tenants that wait at each key, by a loose index scan: one probe a tenant, not one row a lane. Not those
-- with nothing but lanes past their deadline: a share for them would be handed to nobody.
waiting AS (
    SELECT
        served.key,
        (
            SELECT n.tenant FROM lanes AS n
            WHERE open AND NOT drained AND n.key = served.key AND n.deadline > now()
            ORDER BY n.tenant LIMIT 1
        ) AS tenant
    FROM served
    WHERE (SELECT n FROM room) > 0
    UNION ALL
    SELECT
        w.key,
        (
            SELECT n.tenant FROM lanes AS n
            WHERE open AND NOT drained AND n.key = w.key AND n.tenant > w.tenant AND n.deadline > now()
            ORDER BY n.tenant LIMIT 1
        )
    FROM waiting AS w
    WHERE w.tenant IS NOT NULL
),
-- What each of them has in flight; not looked at when one tenant is alone.
load AS (
    SELECT n.tenant, sum(span_size(s.outstanding)) AS items
    FROM spans AS s
    JOIN lanes AS n ON n.id = s.lane_id
    WHERE s.worker_id IS NOT NULL
      AND (SELECT count(DISTINCT tenant) > 1 FROM waiting WHERE tenant IS NOT NULL)
    GROUP BY n.tenant
),
-- Fill the least loaded tenants up to one level, as water would: with the k least loaded ones served, the
-- level is (room + their load) / k, and the right k is the largest whose level covers its own last tenant.
ranked AS (
    SELECT
        tenant,
        items,
        row_number() OVER by_load AS k,
        (room.n + sum(items) OVER by_load)::float8 / row_number() OVER by_load AS level
    FROM (
        SELECT t.tenant, coalesce(load.items, 0) AS items
        FROM (SELECT DISTINCT tenant FROM waiting WHERE tenant IS NOT NULL) AS t
        LEFT JOIN load USING (tenant)
    ) AS tenants
    CROSS JOIN room
    WINDOW by_load AS (ORDER BY items, tenant ROWS UNBOUNDED PRECEDING)
),
-- Shares are rounded up, so their sum may pass the room: tenants beyond it wait for the next claim.
quota AS (
    SELECT tenant, items, share
    FROM (
        SELECT tenant, items, share, sum(share) OVER (ORDER BY items, tenant) - share AS ahead
        FROM (
            SELECT tenant, items, ceil(filled - items)::integer AS share
            FROM ranked
            CROSS JOIN (SELECT level AS filled FROM ranked WHERE level > items ORDER BY k DESC LIMIT 1) AS level
            WHERE filled > items
        ) AS shares
    ) AS queue
    CROSS JOIN room
    WHERE ahead < room.n
),
-- Each tenant's lanes by deadline, no more of them than its share can need.
candidate AS (
    SELECT
        pick.id,
        q.items,
        q.tenant,
        q.share,
        pick.deadline,
        sum(pick.pending) OVER (PARTITION BY q.tenant ORDER BY pick.deadline, pick.id) - pick.pending AS before
    FROM quota AS q
    JOIN waiting AS w ON w.tenant = q.tenant
    CROSS JOIN LATERAL (
        SELECT n.id, n.deadline, n.total - n.next AS pending
        FROM lanes AS n
        WHERE open AND NOT drained AND n.key = w.key AND n.tenant = w.tenant AND n.deadline > now()
        ORDER BY n.deadline, n.id
        LIMIT q.share
    ) AS pick
    UNION ALL
    -- The lanes of the one batch that was asked for, in its own order.
    SELECT n.id, 0, n.tenant, room.n, n.deadline, sum(n.total - n.next) OVER (ORDER BY n.id) - (n.total - n.next)
    FROM lanes AS n
    CROSS JOIN room
    WHERE n.batch_id = %(batch)s::uuid AND n.open AND NOT n.drained AND n.deadline > now() AND room.n > 0
      AND (%(keys)s::text[] IS NULL OR n.key = ANY (%(keys)s::text[]))
),
chosen AS (
    SELECT id, tenant, share, row_number() OVER (ORDER BY items, tenant, deadline, id) AS rank
    FROM candidate
    WHERE before < share
),
lane AS (
    SELECT n.id, n.next, n.total - n.next AS pending
    FROM lanes AS n
    WHERE n.id IN (SELECT id FROM chosen) AND n.open AND NOT n.drained
    ORDER BY n.id
    FOR NO KEY UPDATE
),
-- A lane gives what its tenant's share still wants; then what others left of the room.
shared AS (
    SELECT
        id,
        next,
        rank,
        pending,
        greatest(0, least(pending, share - sum(pending) OVER (PARTITION BY tenant ORDER BY rank) + pending)) AS fair
    FROM lane
    JOIN chosen USING (id)
),
sized AS (
    SELECT id, next, least(take, room.n - sum(take) OVER (ORDER BY rank) + take)::integer AS take
    FROM (
        SELECT
            id,
            next,
            rank,
            fair + greatest(0, least(
                pending - fair,
                room.n - sum(fair) OVER () - sum(pending - fair) OVER (ORDER BY rank) + pending - fair
            )) AS take
        FROM shared
        CROSS JOIN room
    ) AS filled
    CROSS JOIN room
),
advanced AS (
    UPDATE lanes AS n
    SET next = z.next + z.take, drained = z.next + z.take = n.total
    FROM sized AS z
    WHERE n.id = z.id AND z.take > 0
    RETURNING n.id, n.batch_id, z.next AS first, z.take
),
fresh AS (
    INSERT INTO spans (lane_id, batch_id, outstanding, worker_id)
    SELECT id, batch_id, int4multirange(int4range(first, first + take)), %(worker)s FROM advanced
    RETURNING id, lane_id, outstanding, attempt, task_id
),
claimed AS (
    SELECT * FROM whole
    UNION ALL
    SELECT * FROM head
    UNION ALL
    SELECT * FROM fresh
),
renewed AS (
    INSERT INTO workers (id, name, lease_until)
    SELECT %(worker)s, %(name)s, now() + %(lease)s
    WHERE EXISTS (SELECT FROM claimed)
    ON CONFLICT (id) DO UPDATE SET lease_until = excluded.lease_until
)
SELECT
    c.id,
    c.lane_id,
    n.batch_id,
    c.attempt,
    c.task_id,
    span_size(c.outstanding) AS size,
    n.url,
    n.model,
    n.key,
    extract(epoch FROM n.deadline - now())::float8 AS seconds_left,
    b.settings
FROM claimed AS c
JOIN lanes AS n ON n.id = c.lane_id
JOIN batches AS b ON b.id = n.batch_id
