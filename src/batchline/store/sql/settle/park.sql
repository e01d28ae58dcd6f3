-- park: a provider has accepted items as task `task`; they wait for it in a separate span.
--
-- The span is free: the worker that claims it after `delay` seconds is given the task id and asks the provider,
-- instead of sending the items again. Only the holder may park. One task id is known once per upstream,
-- kept by a unique index: a second park of the same task is an error, not a second task.
--
-- A task that is still running is parked again by the same worker: its old span goes before the new one comes.
--
-- Returns `closing` if the batch is being cancelled or has expired, as settle does: the caller must run conclude after
-- this has committed. It is read without a lock; a batch that begins to close just now is concluded by a poll.
--
-- Locks: the span.
WITH
span AS (
    SELECT s.id, s.lane_id, s.batch_id, s.outstanding, s.attempt
    FROM batchline.spans AS s
    WHERE s.id = %(span)s AND s.worker_id = %(worker)s
    FOR UPDATE
),
accepted AS (
    SELECT s.*, s.outstanding * %(ordinals)s::int4multirange AS ordinals
    FROM span AS s
    WHERE NOT isempty(s.outstanding * %(ordinals)s::int4multirange)
),
shrunk AS (
    UPDATE batchline.spans AS s
    SET outstanding = a.outstanding - a.ordinals
    FROM accepted AS a
    WHERE s.id = a.id AND a.outstanding <> a.ordinals
),
emptied AS (
    DELETE FROM batchline.spans AS s
    USING accepted AS a
    WHERE s.id = a.id AND a.outstanding = a.ordinals
    RETURNING 1
)
INSERT INTO batchline.spans (lane_id, batch_id, outstanding, attempt, upstream, task_id, available_at)
SELECT
    lane_id,
    batch_id,
    ordinals,
    attempt,
    %(upstream)s::text,
    %(task)s::text,
    now() + make_interval(secs => %(delay)s)
FROM accepted
-- Asking for the count makes the delete run first; else the insert would meet the task's own old span.
WHERE (SELECT count(*) FROM emptied) >= 0
RETURNING
    id,
    batchline.span_size(outstanding) AS size,
    (
        SELECT b.cancelling_at IS NOT NULL OR b.expiring_at IS NOT NULL
        FROM batchline.batches AS b
        WHERE b.id = spans.batch_id
    ) AS closing
