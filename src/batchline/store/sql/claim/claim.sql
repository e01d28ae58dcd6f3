-- claim: hand up to `limit` items to `worker`, and renew its lease if it got any.
--
-- First whatever was handed out before and is free again: spans whose time has come (retries, released
-- work) and spans of workers whose lease is over. Then fresh lines: move the cursor of as many open lanes
-- as it takes, tenants by what each has in flight, lanes of a tenant by deadline. `keys`, `besides` (all keys
-- but those that are LIKE these), `below` (only keys that are LIKE one of these) and `batch` narrow both. Only
-- spans are returned; fetch.sql reads their lines afterwards, so a client that freezes in the middle of a
-- megabyte of lines holds no lock.
--
-- Locks: spans (SKIP LOCKED: another worker's catch is not worth waiting for), then lanes in id order.
-- Lanes are waited for: a neighbour holds one for a millisecond, and a worker must not go idle for that. If
-- the neighbours left too little, other lanes make up for it, but those are not waited for: no circle can form.
-- Safe because what is handed out is computed from the locked, newest version of each lane (`lane`), not
-- from the snapshot that chose the candidates.
--
-- Cost: O(limit), one probe for each tenant at each key, and, if there are several tenants, one look at the
-- spans in flight; whatever the size of files, their progress and the number of lanes. The plan is made once
-- for all parameters, so no estimate may lead it to read a table from end to end: lanes and batches are
-- looked up one by one, by LATERAL … LIMIT 1 or by = ANY (ARRAY …). Plan guards: tests/store/test_plans.py.
WITH RECURSIVE
-- Who holds spans, by a loose index scan: one probe a worker, not one row a span.
holder AS (
    (SELECT worker_id FROM batchline.spans WHERE worker_id IS NOT NULL ORDER BY worker_id LIMIT 1)
    UNION ALL
    SELECT following.worker_id
    FROM holder AS h
    CROSS JOIN LATERAL (
        SELECT s.worker_id FROM batchline.spans AS s WHERE s.worker_id > h.worker_id ORDER BY s.worker_id LIMIT 1
    ) AS following
),
gone AS (
    SELECT h.worker_id
    FROM holder AS h
    LEFT JOIN batchline.workers AS w ON w.id = h.worker_id
    WHERE coalesce(w.lease_until < now(), true)
),
due AS (
    SELECT s.id, s.outstanding, s.task_id, s.available_at AS since
    FROM batchline.spans AS s
    CROSS JOIN LATERAL (SELECT * FROM batchline.lanes WHERE lanes.id = s.lane_id LIMIT 1) AS n
    WHERE s.worker_id IS NULL
      AND s.available_at <= now()
      AND n.open
      AND n.deadline > now()
      AND (%(keys)s::text[] IS NULL OR n.key = ANY (%(keys)s::text[]))
      AND n.key NOT LIKE ALL (%(excluded)s::text[])
      AND (%(below)s::text[] IS NULL OR n.key LIKE ANY (%(below)s::text[]))
      AND (%(batch)s::uuid IS NULL OR s.batch_id = %(batch)s::uuid)
    ORDER BY s.available_at, s.id
    LIMIT %(limit)s
    FOR UPDATE OF s SKIP LOCKED
),
abandoned AS (
    SELECT span.*
    FROM gone
    CROSS JOIN LATERAL (
        SELECT s.id, s.outstanding, s.task_id, 'infinity'::timestamptz AS since
        FROM batchline.spans AS s
        CROSS JOIN LATERAL (SELECT * FROM batchline.lanes WHERE lanes.id = s.lane_id LIMIT 1) AS n
        WHERE s.worker_id = gone.worker_id
          AND n.open
          AND n.deadline > now()
          AND (%(keys)s::text[] IS NULL OR n.key = ANY (%(keys)s::text[]))
          AND n.key NOT LIKE ALL (%(excluded)s::text[])
          AND (%(below)s::text[] IS NULL OR n.key LIKE ANY (%(below)s::text[]))
          AND (%(batch)s::uuid IS NULL OR s.batch_id = %(batch)s::uuid)
        FOR UPDATE OF s SKIP LOCKED
    ) AS span
),
-- One row an item, kept where a span begins: so the limit ends the reading, and with it the locking, as
-- soon as there are items enough, and the spans beyond are left to the neighbours.
freed AS (
    SELECT id, outstanding, task_id, size, sum(size) OVER (ORDER BY since, id) - size AS before
    FROM (
        SELECT span.*, generate_series(1, size) AS nth
        FROM (
            SELECT due.*, batchline.span_size(outstanding) AS size FROM due
            UNION ALL
            SELECT abandoned.*, batchline.span_size(outstanding) FROM abandoned
        ) AS span
        LIMIT %(limit)s
    ) AS item
    WHERE nth = 1
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
    UPDATE batchline.spans AS s
    SET worker_id = %(worker)s
    FROM wanted AS w
    WHERE s.id = w.id AND w.take = w.size
    RETURNING s.id, s.lane_id, s.attempt, s.task_id, w.size
),
split AS (
    UPDATE batchline.spans AS s
    SET worker_id = NULL,
        available_at = least(s.available_at, now()),
        outstanding = w.outstanding - batchline.span_head(w.outstanding, w.take)
    FROM wanted AS w
    WHERE s.id = w.id AND w.take < w.size
    RETURNING s.lane_id, s.batch_id, s.attempt, batchline.span_head(w.outstanding, w.take) AS head
),
head AS (
    INSERT INTO batchline.spans (lane_id, batch_id, outstanding, worker_id, attempt)
    SELECT lane_id, batch_id, head, %(worker)s, attempt FROM split
    RETURNING id, lane_id, attempt, task_id, batchline.span_size(outstanding) AS size
),
room AS (
    SELECT greatest(0, %(limit)s - coalesce(sum(take), 0))::integer AS n FROM wanted
),
-- The keys that this worker serves and that have work: as told, or found by a loose index scan.
found_key AS (
    (
        SELECT key
        FROM batchline.lanes
        WHERE open AND NOT drained AND %(keys)s::text[] IS NULL AND %(batch)s::uuid IS NULL
        ORDER BY key
        LIMIT 1
    )
    UNION ALL
    SELECT following.key
    FROM found_key AS f
    CROSS JOIN LATERAL (
        SELECT n.key FROM batchline.lanes AS n WHERE open AND NOT drained AND n.key > f.key ORDER BY n.key LIMIT 1
    ) AS following
),
served AS (
    SELECT key
    FROM found_key
    WHERE key NOT LIKE ALL (%(excluded)s::text[])
      AND (%(below)s::text[] IS NULL OR key LIKE ANY (%(below)s::text[]))
    UNION ALL
    SELECT DISTINCT unnest(%(keys)s::text[]) WHERE %(batch)s::uuid IS NULL
    -- Never reached, but it makes the planner expect a few keys instead of hundreds, and so keeps the
    -- estimated cost of all that follows below the one from which PostgreSQL would compile the plan (JIT).
    LIMIT 1000 * %(limit)s
),
-- The tenants that wait at each key, each with its most urgent lane, by a loose index scan. The index is
-- kept from comparing deadlines: it would do so for every entry of each page, and take half as long again.
waiting AS (
    SELECT served.key, first.*
    FROM served
    CROSS JOIN LATERAL (
        SELECT n.tenant, n.id, n.deadline, n.total - n.next AS pending
        FROM batchline.lanes AS n
        WHERE open AND NOT drained AND n.key = served.key AND n.deadline - now() > interval '0'
        ORDER BY n.tenant, n.deadline, n.id
        LIMIT 1
    ) AS first
    WHERE (SELECT n FROM room) > 0
    UNION ALL
    SELECT w.key, following.*
    FROM waiting AS w
    CROSS JOIN LATERAL (
        SELECT n.tenant, n.id, n.deadline, n.total - n.next AS pending
        FROM batchline.lanes AS n
        WHERE open AND NOT drained AND n.key = w.key AND n.tenant > w.tenant AND n.deadline - now() > interval '0'
        ORDER BY n.tenant, n.deadline, n.id
        LIMIT 1
    ) AS following
),
-- What each tenant has in flight with workers that live; not looked at when one tenant is alone.
load AS (
    SELECT tenant, sum(upper(piece) - lower(piece))::integer AS items
    FROM (
        SELECT n.tenant, unnest(s.outstanding) AS piece
        FROM batchline.spans AS s
        CROSS JOIN LATERAL (SELECT * FROM batchline.lanes WHERE lanes.id = s.lane_id LIMIT 1) AS n
        WHERE s.worker_id IS NOT NULL
          AND s.worker_id NOT IN (SELECT worker_id FROM gone)
          AND (SELECT min(tenant) < max(tenant) FROM waiting)
    ) AS held
    GROUP BY tenant
),
-- Fill the least loaded tenants up to one level, as water would. With the k least loaded ones served, the
-- level is (rest + their load) / k, and the right k is the last whose own load is below it; what does not
-- divide goes to the first of them. A tenant with fewer lines than that is dry, and leaves what it did not
-- take to another round among the others. A tenant's last row says its share.
poured AS (
    (
        SELECT
            t.*,
            coalesce(load.items, 0) AS items,
            coalesce(load.items, 0) AS level,
            0 AS share,
            room.n AS rest,
            false AS dry
        FROM (
            SELECT DISTINCT ON (tenant)
                tenant,
                id,
                deadline,
                pending,
                array_agg(key) OVER (PARTITION BY tenant) AS keys
            FROM waiting
            ORDER BY tenant, deadline, id
        ) AS t
        LEFT JOIN load USING (tenant)
        CROSS JOIN room
        -- More tenants than lines cannot be served.
        ORDER BY items, tenant
        LIMIT %(limit)s
    )
    UNION ALL
    SELECT
        tenant,
        id,
        deadline,
        pending,
        keys,
        items,
        level + got,
        share + got,
        rest - (sum(got) OVER ())::integer,
        got < want
    FROM (
        SELECT
            offer.*,
            -- Most tenants have all of it in their most urgent lane; the others' lines are counted.
            CASE
                WHEN pending >= share + want THEN want
                ELSE least(want, (
                    SELECT sum(lane.pending)
                    FROM unnest(keys) AS at (key)
                    CROSS JOIN LATERAL (
                        SELECT n.total - n.next AS pending
                        FROM batchline.lanes AS n
                        WHERE open AND NOT drained
                          AND n.key = at.key
                          AND n.tenant = offer.tenant
                          AND n.deadline > now()
                        ORDER BY n.deadline, n.id
                        LIMIT share + want
                    ) AS lane
                ) - share)::integer
            END AS got
        FROM (
            SELECT
                level.*,
                CASE
                    WHEN k <= served THEN (rest + below) / served - level + (k <= (rest + below) %% served)::integer
                    ELSE 0
                END::integer AS want
            FROM (
                SELECT
                    ranked.*,
                    count(*) FILTER (WHERE rest + total > k * level) OVER () AS served,
                    max(total) FILTER (WHERE rest + total > k * level) OVER () AS below
                FROM (
                    SELECT poured.*, row_number() OVER by_level AS k, sum(level) OVER by_level AS total
                    FROM poured
                    WHERE rest > 0 AND NOT dry
                    WINDOW by_level AS (ORDER BY level, tenant ROWS UNBOUNDED PRECEDING)
                ) AS ranked
            ) AS level
        ) AS offer
        -- Keeps the planner from counting again wherever `got` is named above.
        OFFSET 0
    ) AS taken
),
-- Each tenant's lanes by deadline, no more of them than its share can need: the most urgent one if that is
-- enough, else as many as there are lines to share.
candidate AS (
    SELECT tenant, items, share, id, deadline, pending
    FROM poured
    WHERE (dry OR rest = 0) AND share BETWEEN 1 AND pending
    UNION ALL
    SELECT p.tenant, p.items, p.share, lane.id, lane.deadline, lane.pending
    FROM poured AS p
    CROSS JOIN unnest(p.keys) AS at (key)
    CROSS JOIN LATERAL (
        SELECT n.id, n.deadline, n.total - n.next AS pending
        FROM batchline.lanes AS n
        WHERE open AND NOT drained AND n.key = at.key AND n.tenant = p.tenant AND n.deadline > now()
        ORDER BY n.deadline, n.id
        LIMIT p.share
    ) AS lane
    WHERE (p.dry OR p.rest = 0) AND p.share > p.pending
    UNION ALL
    -- The lanes of the one batch that was asked for. `batchline run` claims so to the end of its batch, and
    -- claim_new.sql cannot stand in: it takes from one lane, no more than a few lines, and nothing that is
    -- locked or was handed out before.
    (
        SELECT n.tenant, 0, room.n, n.id, n.deadline, n.total - n.next
        FROM batchline.lanes AS n
        CROSS JOIN room
        WHERE n.batch_id = %(batch)s::uuid
          AND n.open
          AND NOT n.drained
          AND n.deadline > now()
          AND (%(keys)s::text[] IS NULL OR n.key = ANY (%(keys)s::text[]))
          AND n.key NOT LIKE ALL (%(excluded)s::text[])
          AND (%(below)s::text[] IS NULL OR n.key LIKE ANY (%(below)s::text[]))
          AND room.n > 0
        ORDER BY n.id
        LIMIT %(limit)s
    )
),
chosen AS (
    SELECT id, tenant, share, pending AS seen, row_number() OVER (ORDER BY items, tenant, deadline, id) AS rank
    FROM (
        SELECT *, sum(pending) OVER (PARTITION BY tenant ORDER BY deadline, id) - pending AS before
        FROM candidate
    ) AS lane
    WHERE before < share OR %(batch)s::uuid IS NOT NULL
),
lane AS (
    SELECT n.id, n.next, n.total - n.next AS pending
    FROM batchline.lanes AS n
    WHERE n.id = ANY (ARRAY (SELECT id FROM chosen)) AND n.open AND NOT n.drained
    ORDER BY n.id
    FOR NO KEY UPDATE
),
-- Neighbours were quicker and left less than was seen: take other lanes that nobody holds just now.
missing AS (
    SELECT room.n - locked.pending AS n
    FROM room
    CROSS JOIN (SELECT coalesce(sum(pending), 0) AS pending FROM lane) AS locked
    WHERE locked.pending < least(room.n, (SELECT coalesce(sum(seen), 0) FROM chosen))
),
spare AS (
    SELECT id, next, pending
    FROM (
        SELECT n.*, generate_series(1, n.pending) AS nth
        FROM waiting AS w
        CROSS JOIN LATERAL (
            SELECT n.id, n.next, n.total - n.next AS pending
            FROM batchline.lanes AS n
            WHERE open AND NOT drained AND n.key = w.key AND n.tenant = w.tenant AND n.deadline > now()
              AND n.id NOT IN (SELECT id FROM chosen)
            ORDER BY n.deadline, n.id
            LIMIT (SELECT n FROM missing)
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS n
        WHERE EXISTS (SELECT FROM missing)
        LIMIT (SELECT n FROM missing)
    ) AS line
    WHERE nth = 1
),
-- A lane gives what its tenant's share still wants; then what others left of the room.
shared AS (
    SELECT
        id,
        next,
        pending,
        rank,
        greatest(0, least(pending, share - sum(pending) OVER (PARTITION BY tenant ORDER BY rank) + pending)) AS fair
    FROM lane
    JOIN chosen USING (id)
    UNION ALL
    SELECT id, next, pending, NULL, 0 FROM spare
),
sized AS (
    SELECT
        id,
        next,
        (
            fair + greatest(0, least(
                pending - fair,
                room.n - sum(fair) OVER () - sum(pending - fair) OVER (ORDER BY rank, id) + pending - fair
            ))
        )::integer AS take
    FROM shared
    CROSS JOIN room
),
advanced AS (
    UPDATE batchline.lanes AS n
    SET next = z.next + z.take, drained = z.next + z.take = n.total
    FROM sized AS z
    WHERE n.id = ANY (ARRAY (SELECT id FROM sized)) AND n.id = z.id AND z.take > 0
    RETURNING n.id, n.batch_id, z.next AS first, z.take
),
fresh AS (
    INSERT INTO batchline.spans (lane_id, batch_id, outstanding, worker_id)
    SELECT id, batch_id, int4multirange(int4range(first, first + take)), %(worker)s FROM advanced
    RETURNING id, lane_id, attempt, task_id, upper(outstanding) - lower(outstanding) AS size
),
claimed AS (
    SELECT * FROM whole
    UNION ALL
    SELECT * FROM head
    UNION ALL
    SELECT * FROM fresh
),
renewed AS (
    INSERT INTO batchline.workers (id, name, lease_until)
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
    c.size,
    n.url,
    n.model,
    n.key,
    extract(epoch FROM n.deadline - now())::float8 AS seconds_left,
    b.settings
FROM claimed AS c
CROSS JOIN LATERAL (SELECT * FROM batchline.lanes WHERE lanes.id = c.lane_id LIMIT 1) AS n
CROSS JOIN LATERAL (SELECT * FROM batchline.batches WHERE batches.id = n.batch_id LIMIT 1) AS b
