-- park: a provider has accepted items as tasks; each task waits in a span of its own.
--
-- One element in each array is for one task: its items are some of those of one span. The new span is free: the
-- worker that claims it after the delay gets the task id and polls the task, instead of sending the items again. Only the
-- holder may park. One task id is known once per upstream, kept by a unique index: a second park of the same task is an error, not a
-- second task. Ids of Python operations are unique per item (store/task_ids.py). The span
-- must be of the lane and the batch that the task is for, as in record_verdicts_v2.
--
-- A task that is still running is parked again by the worker that polled it: its span is freed, with `losses` as given:
-- a poll that has succeeded forgets how many workers were lost before.
--
-- Returns each task that was parked: its batch, its items, and `closing` if the batch is being cancelled or has expired, as
-- settle does: the caller must run conclude after this has committed. It is read without a lock; a batch that begins to
-- close just now is concluded by a poll. NULL: the batch was deleted.
--
-- Locks: the spans in id order.
WITH
span AS (
    SELECT s.id, s.lane_id, s.batch_id, s.outstanding, s.attempt, s.attempts_before, s.upstream, s.task_id
    FROM batchline.spans AS s
    WHERE s.id = ANY (%(spans)b) AND s.worker_id = %(worker)s
    ORDER BY s.id
    FOR UPDATE
),
accepted AS (
    SELECT
        s.id,
        s.lane_id,
        s.batch_id,
        s.attempt,
        s.attempts_before,
        s.outstanding * p.ordinals AS ordinals,
        p.upstream,
        p.task_id,
        now() + make_interval(secs => p.delay) AS available_at,
        p.losses,
        -- The same task as before, and all of it.
        s.task_id IS NOT DISTINCT FROM p.task_id
        AND s.upstream IS NOT DISTINCT FROM p.upstream
        AND p.ordinals @> s.outstanding AS same
    FROM unnest(%(spans)b, %(lanes)b, %(batches)s, %(ordinals)b, %(upstreams)b, %(tasks)b, %(delays)b, %(losses)b)
        AS p (span_id, lane_id, batch_id, ordinals, upstream, task_id, delay, losses)
    JOIN span AS s ON s.id = p.span_id AND s.lane_id = p.lane_id AND s.batch_id = p.batch_id
    WHERE NOT isempty(s.outstanding * p.ordinals)
),
again AS (
    UPDATE batchline.spans AS s
    SET worker_id = NULL, available_at = a.available_at, losses = a.losses
    FROM accepted AS a
    WHERE s.id = a.id AND a.same
),
rest AS (
    SELECT s.id, s.outstanding - a.ordinals AS outstanding
    FROM span AS s
    JOIN (SELECT id, range_agg(ordinals) AS ordinals FROM accepted WHERE NOT same GROUP BY id) AS a ON a.id = s.id
),
shrunk AS (
    UPDATE batchline.spans AS s
    SET outstanding = rest.outstanding
    FROM rest
    WHERE s.id = rest.id AND NOT isempty(rest.outstanding)
),
emptied AS (
    DELETE FROM batchline.spans AS s
    USING rest
    WHERE s.id = rest.id AND isempty(rest.outstanding)
),
parked AS (
    INSERT INTO batchline.spans (lane_id, batch_id, outstanding, attempt, attempts_before, upstream, task_id, available_at)
    SELECT lane_id, batch_id, ordinals, attempt, attempts_before, upstream, task_id, available_at
    FROM accepted
    WHERE NOT same
)
SELECT
    a.batch_id,
    batchline.span_size(a.ordinals) AS size,
    (
        SELECT b.cancelling_at IS NOT NULL OR b.expiring_at IS NOT NULL
        FROM batchline.batches AS b
        WHERE b.id = a.batch_id
    ) AS closing,
    a.task_id
FROM accepted AS a
