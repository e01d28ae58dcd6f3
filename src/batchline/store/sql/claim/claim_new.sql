-- claim_new: hand the first lines of a batch that was just announced to an idle worker, with their bodies,
-- and renew its lease.
--
-- claim.sql would find them too. But it looks at all there is, and the lines must be fetched after it; this
-- saves an idle worker most of the time between word of a batch and its first request. It takes from one
-- lane, and no more than `limit`; whatever else there is, the next claim finds.
--
-- Locks: one lane, which is passed over if somebody holds it: then a neighbour is at this batch already.
-- Safe because the lines handed out are counted from the locked, newest version of the lane. Bodies that
-- make more than 32 KiB are left out (NULL) for fetch.sql to read, so that a client that freezes while it
-- is sent a megabyte holds no lock.
WITH
lane AS (
    SELECT n.id, n.next, n.total, least(n.total - n.next, %(limit)s::integer) AS take
    FROM batchline.lanes AS n
    WHERE n.batch_id = %(batch)s
      AND n.open
      AND NOT n.drained
      AND n.deadline > now()
      AND (%(keys)s::text[] IS NULL OR n.key = ANY (%(keys)s::text[]))
      AND n.key NOT LIKE ALL (%(excluded)s::text[])
      AND (%(below)s::text[] IS NULL OR n.key LIKE ANY (%(below)s::text[]))
    ORDER BY n.id
    LIMIT 1
    FOR NO KEY UPDATE SKIP LOCKED
),
advanced AS (
    UPDATE batchline.lanes AS n
    SET next = lane.next + lane.take, drained = lane.next + lane.take = lane.total
    FROM lane
    WHERE n.id = lane.id
    RETURNING n.*, lane.next AS first, lane.take
),
span AS (
    INSERT INTO batchline.spans (lane_id, batch_id, outstanding, worker_id)
    SELECT id, batch_id, int4multirange(int4range(first, first + take)), %(worker)s FROM advanced
    RETURNING id, attempt, task_id
),
renewed AS (
    INSERT INTO batchline.workers (id, name, lease_until)
    SELECT %(worker)s, %(name)s, now() + %(lease)s
    FROM span
    ON CONFLICT (id) DO UPDATE SET lease_until = excluded.lease_until
)
SELECT
    span.id,
    n.id,
    n.batch_id,
    span.attempt,
    span.task_id,
    n.take,
    n.url,
    n.model,
    n.key,
    extract(epoch FROM n.deadline - now())::float8 AS seconds_left,
    b.settings,
    l.ordinal,
    l.line_no,
    l.custom_id,
    CASE WHEN sum(octet_length(l.body)) OVER () <= 32768 THEN l.body END AS body
FROM span
CROSS JOIN advanced AS n
CROSS JOIN LATERAL (SELECT settings FROM batchline.batches WHERE batches.id = n.batch_id LIMIT 1) AS b
-- A span without its lines must be heard of too.
LEFT JOIN LATERAL (
    SELECT lines.ordinal, lines.line_no, lines.custom_id, lines.body
    FROM batchline.lines
    WHERE lines.file_no = n.file_no
      AND lines.lane_no = n.lane_no
      AND lines.ordinal >= n.first
      AND lines.ordinal < n.first + n.take
    ORDER BY lines.ordinal
) AS l ON true
